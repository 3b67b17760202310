// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "ccl/bootstrap/pmix_abi.h"

namespace nupa::ccl {

/// What the stub of libpmix.so.2 answers, and what it was asked.
struct PmixStub {
  uint32_t rank = 0;
  uint32_t ranks = 0;
  int init_status = 0;
  int size_status = 0;
  uint16_t size_type = pmix::kUint32;
  int put_status = 0;
  int get_status = 0;      ///< of the root: refused at once
  int not_found = 0;       ///< of the root: so many times at first
  bool is_silent = false;  ///< of the root: answered by nupa_pmix_stub_answer_late()
  char root[4096] = {};
  void (*on_finalize)() = nullptr;

  int inits = 0, finalizes = 0, puts = 0, committed_puts = 0, gets = 0;
  uint8_t put_scope = 0;
  char put_key[64] = {};
  pmix::OnValue late_done = nullptr;
  void* late_argument = nullptr;
};

}  // namespace nupa::ccl
