// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Fixtures for tests of two processes over shared memory.
#include "shm_fixture.h"

namespace nupa::core {

class ShmShared : public ShmProcesses {};

/// The other process's node, as this one reaches it.
inline host::PeerRef peer_of(ShmEnd& end, uint32_t qp_num) {
  auto connected = end.process().node().connect(shm::slot_of(qp_num), std::chrono::milliseconds(10000));
  return connected ? *connected : nullptr;
}

class ShmDeath : public ShmProcesses {
 protected:
  /// The child dies, and this process has done about it what it does. `qp_num`: of the child's.
  void kill_and_settle(uint32_t qp_num) {
    const host::PeerRef other = peer_of(end, qp_num);
    ASSERT_NE(other, nullptr);
    kill_child();
    ASSERT_TRUE(soon([&] { return !other->alive(); }));
    end.events().on_peer_exit(*other);  // once more than the service thread, which may be in the middle of it
  }
};

inline bool connect_and_wait(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
  line.wait();
  return true;
}

inline bool send_number_and_wait(ShmEnd& end, const ShmLine& line) {
  return line.give(end.make_qp()->number()) && line.wait();
}

}  // namespace nupa::core
