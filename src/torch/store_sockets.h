// Sets two things that c10d's TCPStore leaves open: where its server listens, and how long its client may wait.
#pragma once

#include <chrono>
#include <string>

namespace penstock {

// Opens a socket that listens on this address and no other, for a server to take over. It listens on all addresses where the name is this
// machine's but leads only to itself (as some systems' own host names do), and where this machine does not have the address (a
// forwarder's). Throws Error: the port is in use, the name is unknown.
int listen_at(const std::string& address, int port);

// Limits all connections of this process to `port`, the store's: from now on no answer and no message may take longer.
void limit_sockets_to(int port, std::chrono::milliseconds longest);
// Closes those connections, which ends whatever waits for them.
void close_sockets_to(int port);

}  // namespace penstock
