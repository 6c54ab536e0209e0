// SPDX-License-Identifier: Apache-2.0
#include "driver/store_sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

int port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Returns 0, or the errno that says why it failed.
int try_listen(const addrinfo& at, int& fd) {
  fd = ::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd >= 0 && ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 && ::bind(fd, at.ai_addr, at.ai_addrlen) == 0 &&
      ::listen(fd, SOMAXCONN) == 0)
    return 0;
  const int reason = errno;
  if (fd >= 0) ::close(fd);
  return reason;
}

// Whether nobody listens there.
bool refuses(const addrinfo& at) {
  const int fd = ::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const timeval second = {1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
  const bool refused = ::connect(fd, at.ai_addr, at.ai_addrlen) != 0 && errno == ECONNREFUSED;
  ::close(fd);
  return refused;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// The addresses of `host`; nullptr stands for all interfaces.
Addresses find_addresses(const char* host, int port) {
  addrinfo wanted = {}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  wanted.ai_family = host ? AF_UNSPEC : AF_INET;
  if (const int error = ::getaddrinfo(host, std::to_string(port).c_str(), &wanted, &found); error != 0)
    throw Error(concat("cannot find the address of ", host ? host : "this machine", ": ", ::gai_strerror(error)), {}, "see MASTER_ADDR");
  return {found, ::freeaddrinfo};
}

// Whether the name itself says that only this machine is meant.
bool is_local_name(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

}  // namespace

int listen_at(const std::string& address, int port) {
  Addresses at = find_addresses(address.c_str(), port);
  if (is_loopback(at->ai_addr) && !is_local_name(address)) at = find_addresses(nullptr, port);
  int fd = -1;
  int reason = try_listen(*at, fd);
  if (reason == EADDRNOTAVAIL) reason = try_listen(*find_addresses(nullptr, port), fd);
  if (reason == EADDRINUSE)
    throw Error(concat("port ", port, " is in use"), {}, "set MASTER_PORT to a free one; another run may still be there");
  if (reason != 0)
    throw Error(concat("cannot listen at ", address, ":", port, ": ", std::strerror(reason)), {}, "see MASTER_ADDR and MASTER_PORT");
  return fd;
}

void await_listener(const std::string& address, int port, std::chrono::milliseconds longest) {
  constexpr std::chrono::milliseconds kRest(5);
  const auto end = std::chrono::steady_clock::now() + longest;
  try {
    const Addresses all = find_addresses(address.c_str(), port);
    const auto nobody_listens = [&] {
      for (const addrinfo* at = all.get(); at; at = at->ai_next)
        if (!refuses(*at)) return false;
      return true;
    };
    while (nobody_listens() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kRest);
  } catch (const Error&) {  // whoever connects says it
  }
}

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = socket >= 0 && ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int reason = errno;
  if (socket >= 0) ::close(socket);
  if (!bound) throw Error(concat("there is no free port: ", std::strerror(reason)));
  return ntohs(address.sin_port);
}

std::vector<int> sockets_to(int port) {
  std::vector<int> out;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_storage peer = {};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && port_of(peer) == port) out.push_back(fd);
  }
  return out;
}

void limit_sockets_to(int port, std::chrono::milliseconds longest, const std::vector<int>& others) {
  const timeval limit = {longest.count() / 1000, longest.count() % 1000 * 1000};
  for (const int fd : sockets_to(port)) {
    if (std::ranges::find(others, fd) != others.end()) continue;
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
}

void close_sockets_to(int port, const std::vector<int>& others) {
  for (const int fd : sockets_to(port))
    if (std::ranges::find(others, fd) == others.end()) ::shutdown(fd, SHUT_RDWR);
}

}  // namespace penstock
