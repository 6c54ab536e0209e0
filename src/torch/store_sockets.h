// Two things that c10d's TCPStore leaves open: where its server listens, and how long its client may wait.
#pragma once

#include <chrono>
#include <string>

namespace penstock {

// A socket that listens on this address and no other, for a server to take over. A name of this machine that leads only to itself, as
// some systems' own host names do, or an address that this machine does not have (of a forwarder), listens on all. Throws Error: the port
// is in use, the name is unknown.
int listen_at(const std::string& address, int port);

// Limits all connections of this process to `port`, the store's: no answer, and no message, takes longer from now on.
void limit_sockets_to(int port, std::chrono::milliseconds longest);
// Ends what they wait for.
void close_sockets_to(int port);

}  // namespace penstock
