#include "base/hash.h"

namespace penstock {

void Hash::add(std::uint64_t word) {
  state_ = (state_ ^ word) * 0x100000001b3ull;
  state_ ^= state_ >> 29;
}

void Hash::add(std::string_view bytes) {
  add(bytes.size());
  for (char c : bytes) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
}

std::uint64_t Hash::value() const {
  // The finaliser of MurmurHash3 (Appleby, public domain).
  std::uint64_t h = state_;
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdull;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return h ^ (h >> 33);
}

}  // namespace penstock
