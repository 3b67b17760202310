// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "shadow.h"
#include "expect.h"
#include "shm/send_lock.h"

// The lines that are checked: an initiator's view of a queue pair, and its owner's of the receive queue.
#include "core/receive_queue.cc"
#include "core/seam/shared_target.cc"

// What they call and the cases do not come to.
namespace nupa::base {
const BlockCopyRange kBlockCopyRange{0, 0};
void copy_block_by_loop(::std::byte*, const ::std::byte*, uint64_t) {}
void log(LogLevel, const char*, ...) {}
}  // namespace nupa::base
namespace nupa::host {
bool CompletionPort::open() { return false; }
bool CompletionPort::overrun() { return false; }
void raise_cq_event(Peer&, uint32_t) {}
void call_attention(Peer&, uint32_t, uint32_t) {}
void signal_limit(Peer&, shm::RecvRing&, uint32_t) {}
}  // namespace nupa::host
namespace nupa::base {
thread_local constinit GuardedAccess* volatile t_guarded_access = nullptr;
void leave_memory_fault(const GuardedAccess&) {}
}  // namespace nupa::base
namespace nupa::host {
::std::shared_ptr<PeerMemory> PeerMemories::of(host::Peer& peer) {
  return ::std::make_shared<PeerMemory>(peer, agent_);
}
WcStatus write_remote_slowly(AgentCall&, PeerMemory&, const RemoteRange&, const base::Piece*, uint32_t) {
  return WcStatus::kGeneralErr;
}
WcStatus read_remote_slowly(AgentCall&, PeerMemory&, const RemoteRange&, const base::Piece*, uint32_t) {
  return WcStatus::kGeneralErr;
}
std::optional<uint64_t> KeyCache::first_address(uint32_t) { return std::nullopt; }
bool KeyCache::resolve_slowly(uint32_t, uint64_t, uint64_t, uint32_t, uint32_t, uint32_t, RemoteRange*) {
  return false;
}
WcStatus AgentCall::atomic(host::Peer&, shm::AgentOp, uint64_t, uint64_t*, uint64_t) { return WcStatus::kGeneralErr; }
void AgentCall::forget() {}
}  // namespace nupa::host
namespace nupa::core {
bool DomainQueue::stands() const { return false; }
::std::optional<DomainQueue> find_domain_queue(host::Node&, uint32_t, uint64_t, bool*) { return {}; }

/// Where the owner's rings lie.
inline void* ring_memory = nullptr;
constexpr uint32_t kLog2 = 2;  ///< of a ring for two receives
ReceiveRing open_ring(host::Peer&, shm::RecvRing& ring, bool*) { return {&ring, ring_memory, kLog2, ring.stride}; }

namespace {

using model::Build;
using model::Case;
using shm::SendLock;
using shm::SlotState;

constexpr uint32_t kSlot = 5, kSenderQpn = 77;
constexpr uint32_t kOwnerTag = 9;
constexpr uint64_t kEpoch = 3;

/// A connected queue pair of the owner's with one receive posted, and the sender's view of it.
struct Pair {
  shm::QpShared* qp = nullptr;
  shm::SrqShared* srq = nullptr;
  std::atomic<uint32_t>* send_lock = nullptr;  ///< the sender's
  ::std::unique_ptr<ReceiveQueue> queue;
  host::DueEvent due;
  host::PeerRef peer;
  ::std::unique_ptr<host::Node> node;
  ::std::unique_ptr<RingMemory> rings;
  ::std::unique_ptr<host::PeerMemories> memories;
  ::std::unique_ptr<SharedTarget> target;
  // By the number of a receive (wr_id).
  uint32_t filled[3] = {};
  uint32_t flushed[3] = {};
  uint32_t buffers[3] = {};

  void post(uint64_t wr_id) { model::require(queue->post({.wr_id = wr_id}) == 0, "there is room"); }
  /// As Qp::set_state() and Qp::next_epoch().
  void set_state(uint64_t epoch, QpState state) {
    uint64_t word = qp->state.load();
    while (!qp->state.compare_exchange_weak(word, shm::pack_state(epoch, state))) {
    }
  }
  /// As Qp::flush_receives(), once more whenever a claim has ended, until all receives are back.
  void take_receives_back() {
    while (!queue->drain(
        [this](const RecvSlot& slot) {
          model::note_access(&slot.wr_id, sizeof slot.wr_id, false);
          ++flushed[slot.wr_id];
        },
        0, [](uint32_t) { return false; }, [](const RecvSlot&) { return false; })) {
      for (uint64_t position = 0; position < 2; ++position)
        while (shm::slot_state_of(queue->ring().slot(position).stamp.load(std::memory_order_relaxed)) ==
               SlotState::kClaimed)
          _mm_pause();
    }
  }
  /// The owner's program uses a buffer again, as it may when its receive has ended.
  void use_buffer(uint64_t wr_id) {
    model::note_access(&buffers[wr_id], sizeof buffers[wr_id], true);
    ++buffers[wr_id];
  }
  /// As Connected::send(): the message is for whom the target has found ready.
  void send() {
    if (!target->ready(kSlot, kSenderQpn)) return;
    deliver();
  }
  void deliver() {
    const ReceiveRing::Claim claim = target->take();
    if (!claim) return;
    model::note_access(&claim.slot->wr_id, sizeof claim.slot->wr_id, false);
    const uint64_t wr_id = claim.slot->wr_id;
    use_buffer(wr_id);
    ++filled[wr_id];
    ReceiveRing::finish(claim);
  }
};

Pair& make_pair(Case& made, bool is_shared) {
  auto& pair = made.make<Pair>();
  pair.qp = &made.make<shm::QpShared>();
  pair.srq = &made.make<shm::SrqShared>();
  pair.send_lock = &made.make<std::atomic<uint32_t>>();
  shm::Tables tables;
  tables.qp = pair.qp;
  tables.srq = pair.srq;
  ring_memory = made.memory(ReceiveRing::stride_for(1) << kLog2);
  pair.peer = ::std::make_shared<host::Peer>(tables);
  pair.node = ::std::make_unique<host::Node>(*pair.peer);
  pair.rings = ::std::make_unique<RingMemory>(shm::Segment::Block{4096, 4096, ring_memory});
  pair.memories = ::std::make_unique<host::PeerMemories>(*pair.node);
  pair.queue = *ReceiveQueue::create(*pair.rings, kOwnerTag, is_shared ? pair.srq->recv : pair.qp->recv, 2, 1, 1);
  made.adopt(pair.queue.get(), sizeof *pair.queue);
  pair.qp->in_use = 1;
  pair.qp->remote_qpn = kSenderQpn;
  pair.qp->remote_slot = kSlot;
  pair.qp->srq = is_shared ? 1 : 0;
  pair.qp->state = shm::pack_state(kEpoch, QpState::kRts);
  pair.target = ::std::make_unique<SharedTarget>(*pair.node, *pair.memories, *pair.peer, 0, &pair.due);
  pair.post(0);
  return pair;
}

void add_sender(Case& made, Pair& pair) {
  made.thread("sender", [&pair] {
    SendLock held(*pair.send_lock);
    const ::std::lock_guard guard(held);
    pair.send();
  });
}
/// As quiesce().
void grace(const Pair& pair) {
  SendLock::fence_after_revoking();
  SendLock::await_holder(*pair.send_lock, [] { return true; });
}

/// The receive is filled or flushed, and after that nobody writes its buffer.
void goes_to_the_error_state(Case& made) {
  auto& pair = make_pair(made, false);
  made.thread("owner", [&pair] {
    pair.set_state(kEpoch, QpState::kErr);
    grace(pair);
    pair.take_receives_back();
    pair.use_buffer(0);
  });
  add_sender(made, pair);
  made.finally([&pair] { model::require(pair.filled[0] + pair.flushed[0] == 1, "a receive ends once"); });
}

/// The sender was stopped for so long that the owner does not wait for it, before it claims a receive.
void goes_to_the_error_state_without_the_sender(Case& made) {
  auto& pair = make_pair(made, false);
  made.thread("owner", [&pair] {
    pair.set_state(kEpoch, QpState::kErr);
    pair.take_receives_back();
    pair.use_buffer(0);
  });
  made.thread("sender", [&pair] { pair.send(); });
  made.finally([&pair] { model::require(pair.filled[0] + pair.flushed[0] == 1, "a receive ends once"); });
}

/// The same, and the queue pair begins another life meanwhile: its receive is not for the old sender, which has had the
/// one before.
void begins_another_life(Case& made) {
  auto& pair = make_pair(made, false);
  pair.send();
  made.thread("owner", [&pair] {
    pair.set_state(kEpoch + 1, QpState::kReset);
    pair.take_receives_back();
    pair.post(1);
    pair.set_state(kEpoch + 1, QpState::kRts);
  });
  made.thread("sender", [&pair] { pair.deliver(); });
  made.finally([&pair] {
    model::require(pair.filled[1] == 0, "a receive is for a sender of its own life");
    pair.take_receives_back();
    model::require(pair.flushed[1] == 1, "a receive that was claimed too late is there");
  });
}

/// A shared receive queue: what the owner is told after the wait is that this queue pair takes nothing any more (IBTA
/// 11.6.3.1), and its receives are left to others.
void leaves_a_shared_queue(Case& made) {
  auto& pair = make_pair(made, true);
  auto& told = made.make<std::atomic<uint32_t>>();
  made.thread("owner", [&pair, &told] {
    pair.set_state(kEpoch, QpState::kErr);
    grace(pair);
    told.store(1, std::memory_order_relaxed);
    model::note_access(&pair.filled, sizeof pair.filled, true);
  });
  made.thread("sender", [&pair, &told] {
    SendLock held(*pair.send_lock);
    const ::std::lock_guard guard(held);
    pair.send();
    if (pair.filled[0] == 0) return;
    model::note_access(&pair.filled, sizeof pair.filled, false);
    model::require(told.load(std::memory_order_relaxed) == 0, "nothing is taken after the event");
  });
}

/// The responder's program begins to send meanwhile: its receive is there before and after.
void goes_from_rtr_to_rts(Case& made) {
  auto& pair = make_pair(made, false);
  pair.qp->state = shm::pack_state(kEpoch, QpState::kRtr);
  made.thread("owner", [&pair] { pair.set_state(kEpoch, QpState::kRts); });
  add_sender(made, pair);
  made.finally([&pair] { model::require(pair.filled[0] == 1, "the message takes the receive"); });
}

TEST(ModelTarget, ReadyToSend_BesideASender_GivesTheReceive) { model::expect_holds(goes_from_rtr_to_rts); }
TEST(ModelTarget, ErrorState_BesideASender_EndsTheReceiveOnce) { model::expect_holds(goes_to_the_error_state); }
TEST(ModelTarget, ErrorState_WithoutTheSender_EndsTheReceiveOnce) {
  model::expect_holds(goes_to_the_error_state_without_the_sender);
}
TEST(ModelTarget, AnotherLife_BesideAnOldSender_KeepsItsReceives) { model::expect_holds(begins_another_life); }
TEST(ModelTarget, SharedQueue_AfterTheEvent_GivesNothing) { model::expect_holds(leaves_a_shared_queue); }

TEST(ModelTarget, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {goes_to_the_error_state_without_the_sender, begins_another_life, leaves_a_shared_queue};
  EXPECT_EQ(model::needed_orders(cases, {"seam/shared_target.h", "seam/shared_target.cc", "core/receive_queue.cc",
                                         "shm/send_lock.h", "base/fence.h"}),
            (::std::vector<::std::string>{
                "SharedTarget::ready load acquire: x86 relaxed, C++ relaxed",
                "SharedTarget::take store relaxed: x86 relaxed, C++ relaxed",
                "SharedTarget::take load seq_cst: x86 relaxed, C++ relaxed",
                "SharedTarget::revalidate load acquire: x86 relaxed, C++ relaxed",
                "SharedTarget::revalidate load seq_cst: x86 relaxed, C++ relaxed",
                "SharedTarget::revalidate load seq_cst 2: x86 relaxed, C++ relaxed",
                "SharedTarget::revalidate load seq_cst 3: x86 relaxed, C++ relaxed",
                "SharedTarget::revalidate load seq_cst 4: x86 relaxed, C++ relaxed",
                "SharedTarget::revalidate load seq_cst 5: x86 relaxed, C++ relaxed",
                "SharedTarget::revalidate load seq_cst 6: x86 relaxed, C++ relaxed",
                "SharedTarget::revalidate load seq_cst 7: x86 relaxed, C++ relaxed",
                "ReceiveQueue::post load acquire: x86 relaxed, C++ relaxed",
                "ReceiveQueue::post store release: x86 relaxed, C++ relaxed",
                "ReceiveQueue::drain_one load acquire: x86 relaxed, C++ acquire",
                "ReceiveQueue::drain_one failure seq_cst: x86 relaxed, C++ relaxed",
                "ReceiveQueue::drain_one compare_exchange seq_cst: x86 relaxed, C++ relaxed",
                "ReceiveQueue::drain store release: x86 relaxed, C++ relaxed",
                "SendLock::try_lock load relaxed: x86 relaxed, C++ relaxed",
                "SendLock::try_lock failure seq_cst: x86 relaxed, C++ relaxed",
                "SendLock::try_lock compare_exchange seq_cst: x86 relaxed, C++ relaxed",
                "SendLock::unlock store release: x86 relaxed, C++ release",
                "SendLock::unlock load relaxed: x86 relaxed, C++ relaxed",
                "SendLock::fence_after_revoking fence seq_cst: x86 none, C++ none",
                "SendLock::await_holder load seq_cst: x86 relaxed, C++ acquire",
                "SendLock::await_holder load acquire: x86 relaxed, C++ acquire",
                "base::fence_after_update fence seq_cst: x86 none, C++ none",
            }));
}

}  // namespace
}  // namespace nupa::core
