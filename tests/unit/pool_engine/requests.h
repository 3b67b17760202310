// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Two connected queue pairs, of hosts 0 and 1, and requests between them.
#include <cstring>

#include "world.h"

namespace nupa::pool::test {

class PoolRequests : public PoolEngine {
 protected:
  Pair a{*hosts[0], 1, 1, 2};
  Pair b{*hosts[1], 0, 2, 1};

  void fill(Pair& pair, uint64_t offset, size_t length) {
    const auto bytes = pattern_bytes(length);
    if (length > 0) std::memcpy(pair.core().memory.data() + offset, bytes.data(), length);
  }
  bool holds_pattern(Pair& pair, uint64_t offset, size_t length) {
    const auto bytes = pattern_bytes(length);
    return length == 0 || std::memcmp(pair.core().memory.data() + offset, bytes.data(), length) == 0;
  }
  SendWr write(uint64_t offset) {
    SendWr wr;
    wr.opcode = Opcode::kRdmaWrite;
    wr.remote_addr = kBase + offset;
    wr.rkey = kKey;
    return wr;
  }
  SendWr read(uint64_t id, uint64_t offset) {
    SendWr wr = write(offset);
    wr.wr_id = id;
    wr.opcode = Opcode::kRdmaRead;
    return wr;
  }
};

}  // namespace nupa::pool::test
