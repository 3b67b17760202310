// SPDX-License-Identifier: Apache-2.0
// libFuzzer's way in; NUPA_FUZZ_TARGET is one of targets.h.
#include "targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length) {
  nupa::fuzz::NUPA_FUZZ_TARGET(data, length);
  return 0;
}
