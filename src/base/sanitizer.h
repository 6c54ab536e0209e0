// SPDX-License-Identifier: Apache-2.0
// The sanitizer that watches this code, if one does, as gcc and clang each say it.
#pragma once

namespace penstock {

enum class Sanitizer { none, address, thread };

#ifdef __clang__
inline constexpr Sanitizer kSanitizer = __has_feature(address_sanitizer)  ? Sanitizer::address
                                        : __has_feature(thread_sanitizer) ? Sanitizer::thread
                                                                          : Sanitizer::none;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr Sanitizer kSanitizer = Sanitizer::address;
#elif defined(__SANITIZE_THREAD__)
inline constexpr Sanitizer kSanitizer = Sanitizer::thread;
#else
inline constexpr Sanitizer kSanitizer = Sanitizer::none;
#endif

}  // namespace penstock
