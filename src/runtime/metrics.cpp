#include "runtime/metrics.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

using nlohmann::json;

std::string to_json(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {{"step", metrics.step}, {"loss", metrics.loss}};
  if (metrics.validation_loss) line["validation_loss"] = *metrics.validation_loss;
  line["gradient_norm"] = metrics.gradient_norm;
  line["learning_rate"] = metrics.learning_rate;
  line["seconds"] = metrics.seconds;
  line[metrics.counted + "_per_second"] = metrics.rate;
  line["bubble"] = metrics.bubble;
  line["peak_bytes"] = metrics.peak_bytes;
  return line.dump();
}

MetricsFile::MetricsFile(std::string path, std::int64_t last_step) : path_(std::move(path)) {
  std::string kept;
  if (std::filesystem::exists(path_)) {
    for (const std::string& line : split(read_file(path_), '\n')) {
      // The last line may be cut off by a kill.
      const json entry = json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (entry.is_object() && entry.value("step", json()).is_number_integer() && entry["step"].get<std::int64_t>() <= last_step)
        kept += line + "\n";
    }
  }
  write_file(path_, kept);
}

void MetricsFile::append(const StepMetrics& metrics) {
  std::ofstream out(path_, std::ios::app);
  out << to_json(metrics) << '\n';
  out.close();
  if (!out) throw Error(concat("cannot write ", path_, ": ", std::strerror(errno)));
}

}  // namespace penstock
