// SPDX-License-Identifier: Apache-2.0
// Sets what c10d's TCPStore leaves open: at which port and where its server listens, and how long its client may wait.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace penstock {

// Opens a socket that listens on this address and no other, for a server to take over. It listens on all addresses where the name is this
// machine's but leads only to itself (as some systems' own host names do), and where this machine does not have the address (a
// forwarder's). Throws Error: the port is in use, the name is unknown.
int listen_at(const std::string& address, int port);

// Returns once somebody listens there or it cannot be asked, after `longest` at the latest: c10d's client rests for up to a second after an
// attempt that was refused, as it is where a process is ready before the server's.
void await_listener(const std::string& address, int port, std::chrono::milliseconds longest);

// A port of the loopback address that nobody used a moment ago. Throws Error where there is none.
int free_port();

// File descriptors of this process's connections to `port`, the store's.
std::vector<int> sockets_to(int port);
// Limits those but `others`: from now on no answer and no message may take longer.
void limit_sockets_to(int port, std::chrono::milliseconds longest, const std::vector<int>& others);
// Closes those but `others`, which ends whatever waits for them.
void close_sockets_to(int port, const std::vector<int>& others);

}  // namespace penstock
