// The flags that describe links and disturbances.
#include <charconv>
#include <cmath>

#include "base/text.h"
#include "cli/simulate.h"
#include "penstock/error.h"

namespace penstock {
namespace {

[[noreturn]] void fail(const std::string& flag, const std::string& value, const std::string& why, const std::string& hint = {}) {
  throw Error(concat(flag, " ", value, ": ", why), {}, hint);
}

// The whole text as a number; nothing where it is none.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

double bandwidth_of(const std::string& flag, double value) {
  if (!(value > 0)) fail(flag, number(value), "a bandwidth is above 0");  // infinite: takes no time
  return value;
}

std::int32_t device_of(const std::string& flag, const std::string& value, std::string_view text, std::int32_t devices) {
  const std::optional<std::int32_t> device = parse_number<std::int32_t>(text);
  if (!device) fail(flag, value, concat(quote(text), " is no actor's number"));
  if (*device < 0 || *device >= devices)
    fail(flag, value, concat("there is no actor ", *device), concat("there are ", devices, ": 0 to ", devices - 1));
  return *device;
}

constexpr const char* kLinkForm = "a link is written 2-3:latency=0.5,bandwidth=100, both directions at once";

void set(Link& link, const std::string& value, const std::string& setting) {
  const std::size_t equals = setting.find('=');
  const std::string key = setting.substr(0, equals);
  const std::optional<double> to = equals == std::string::npos ? std::nullopt : parse_number<double>(setting.substr(equals + 1));
  if (!to || (key != "latency" && key != "bandwidth")) fail("--link", value, concat("cannot read ", quote(setting)), kLinkForm);
  if (key == "latency")
    link.latency = checked(concat("--link ", value, ": latency"), *to);
  else
    link.bandwidth = bandwidth_of(concat("--link ", value, ": bandwidth"), *to);
}

void add_link(Network& network, const std::string& value, std::int32_t devices) {
  const std::size_t colon = value.find(':'), dash = value.find('-');
  if (colon == std::string::npos || dash == std::string::npos || dash > colon) fail("--link", value, "this is no link", kLinkForm);
  const std::int32_t a = device_of("--link", value, std::string_view(value).substr(0, dash), devices);
  const std::int32_t b = device_of("--link", value, std::string_view(value).substr(dash + 1, colon - dash - 1), devices);
  if (a == b) fail("--link", value, "a link is between two actors", kLinkForm);
  if (network.between.contains({a, b})) fail("--link", value, concat("link ", a, "-", b, " is given twice"));
  Link link = network.link;
  for (const std::string& setting : split(value.substr(colon + 1), ',')) set(link, value, setting);
  network.between[{a, b}] = network.between[{b, a}] = link;
}

}  // namespace

double checked(const std::string& flag, double value) {
  if (!std::isfinite(value) || value < 0) fail(flag, number(value), "it must be a finite number, 0 or above");
  return value;
}

Network network_of(const SimulateArguments& arguments, std::int32_t devices, Network network) {
  if (arguments.latency) network.link.latency = checked("--latency", *arguments.latency);
  if (arguments.bandwidth) network.link.bandwidth = bandwidth_of("--bandwidth", *arguments.bandwidth);
  for (const std::string& value : arguments.links) add_link(network, value, devices);
  return network;
}

Disturbance disturbance_of(const SimulateArguments& arguments, std::int32_t devices) {
  Disturbance disturbance;
  if (!(arguments.jitter >= 0 && arguments.jitter < 1))
    fail("--jitter", number(arguments.jitter), "it is a share of each time: 0 or above, below 1");
  disturbance.jitter = arguments.jitter;
  disturbance.seed = arguments.seed;
  for (const std::string& value : arguments.stragglers) {
    const std::size_t equals = value.find('=');
    const std::optional<double> factor = equals == std::string::npos ? std::nullopt : parse_number<double>(value.substr(equals + 1));
    if (!factor) fail("--straggler", value, "this is no actor and factor", "actor 2 at half its speed is written 2=2");
    const std::int32_t device = device_of("--straggler", value, std::string_view(value).substr(0, equals), devices);
    if (!std::isfinite(*factor) || *factor <= 0) fail("--straggler", value, "the factor must be a finite number above 0");
    disturbance.slowdown.resize(static_cast<std::size_t>(devices), 1);
    disturbance.slowdown[static_cast<std::size_t>(device)] *= *factor;
  }
  return disturbance;
}

}  // namespace penstock
