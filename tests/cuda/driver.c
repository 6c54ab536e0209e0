// SPDX-License-Identifier: Apache-2.0
// A driver of NVIDIA's for tests, libcuda.so.1, as CUDA's runtime loads it: one that cannot be initialised. Environment: FAKE_DRIVER_VERSION,
// of the CUDA that it is for, such as 12020; FAKE_DRIVER_ERROR, why it cannot, such as 100: there is no device.
#include <stdlib.h>
#include <string.h>

static int number(const char* name, int otherwise) {
  const char* const given = getenv(name);
  return given ? atoi(given) : otherwise;
}

static int fail(void) {
  return number("FAKE_DRIVER_ERROR", 100);
}

int cuDriverGetVersion(int* version) {
  *version = number("FAKE_DRIVER_VERSION", 13000);
  return 0;
}

int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags, int* found) {
  (void)version, (void)flags;
  *function = !strcmp(name, "cuDriverGetVersion")    ? (void*)cuDriverGetVersion
              : !strcmp(name, "cuGetProcAddress") ? (void*)cuGetProcAddress_v2
                                                  : (void*)fail;
  if (found) *found = 0;
  return 0;
}
