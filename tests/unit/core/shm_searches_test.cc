// SPDX-License-Identifier: Apache-2.0
/// Tests of peers over shared memory that do not exist, or do not exist yet.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstddef>
#include <utility>

#include "../../support/loop_by_hand.h"
#include "core/seam/shared_target.h"
#include "shm_fixture.h"
#include "shm_targets.h"

namespace nupa::core {
namespace {

TEST_F(ShmTarget, Send_PeerDoesNotExist_FailsAfterATime) {
  Qp* qp = make_qp();
  const uint32_t empty = process().slot() == 77 ? 78 : 77;
  ASSERT_EQ(connect(*qp, shm::number_of(empty, 5), {.timeout = 0}), 0);
  ASSERT_EQ(send(*qp, 1), 0);
  ASSERT_EQ(send(*qp, 2), 0);
  ASSERT_EQ(receive(*qp, 3), 0);
  // The oldest request says why, the others are flushed (IBTA 9.9.2.1).
  for (int i = 0; i < 3; ++i) {
    const WorkCompletion wc = next();
    EXPECT_EQ(wc.status, wc.wr_id == 1 ? WcStatus::kRetryExcErr : WcStatus::kWrFlushErr) << wc.wr_id;
  }
  EXPECT_EQ(state_of(*qp), QpState::kErr);
}

TEST_F(ShmTarget, NoRequest_PeerDoesNotExist_StaysReadyUntilARequestFails) {
  constexpr int64_t kLong = 1'000'000'000;
  const uint32_t empty = process().slot() == 77 ? 78 : 77;
  for (const QpType type : {QpType::kRc, QpType::kUc}) {
    Qp* qp = make_qp(type);
    ASSERT_EQ(connect(*qp, shm::number_of(empty, 5), {.timeout = 0}), 0);
    ASSERT_EQ(receive(*qp, 3), 0);
    try_by_hand(*qp);
    ASSERT_TRUE(soon([&] { return qp->progress(base::now_ns() + kLong) == INT64_MAX; })) << "it is looked for no more";
    EXPECT_EQ(state_of(*qp), QpState::kRts);
    EXPECT_TRUE(is_empty());
    ASSERT_EQ(write(*qp, 1), 0);
    const WorkCompletion wc = next();
    EXPECT_EQ(wc.wr_id, 1u);
    if (type == QpType::kUc) {  // IBTA 9.8.2: no request is answered
      EXPECT_EQ(wc.status, WcStatus::kSuccess);
      EXPECT_EQ(state_of(*qp), QpState::kRts);
      continue;
    }
    EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
    const WorkCompletion flushed = next();
    EXPECT_EQ(flushed.wr_id, 3u);
    EXPECT_EQ(flushed.status, WcStatus::kWrFlushErr);
    EXPECT_EQ(state_of(*qp), QpState::kErr);
  }
}

/// When the service thread of `process` wakes by itself, once it has done all that it has to do now.
int64_t next_due(Process& process) {
  progress::Loop& loop = process.node().loop();
  int64_t due = 0;
  // The timers that are due have their turn after the first call.
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(loop.call([&] { due = progress::LoopByHand::next_due_ns(loop); }, progress::Deadline::in_ms(60'000)));
  return due;
}

TEST_F(ShmTarget, Destroy_PeerNotResolved_IsNotSearchedAgain) {
  const int64_t idle = next_due(process());
  Qp* qp = make_qp();
  const uint32_t empty = process().slot() == 77 ? 78 : 77;
  ASSERT_EQ(to_init(*qp), 0);
  shm::SendLock sends(shared(*qp).send_lock);
  {
    // The service thread waits here. It would set its timer if it searched before the queue pair is destroyed, or if it
    // met the queue pair, which has no endpoint any more, before the send lock is taken.
    std::lock_guard copies(process().remapper().copy_mutex());
    ASSERT_EQ(to_rtr(*qp, shm::number_of(empty, 5)), 0);
    ASSERT_EQ(qp->close(), 0);
    sends.lock();
  }
  EXPECT_EQ(next_due(process()), idle) << "there is nothing to come again for";
  sends.unlock();
}

TEST_F(ShmTarget, Reset_PeerNotResolved_IsNotSearchedAgain) {  // the next connection has all of its time
  const int64_t idle = next_due(process());
  Qp* qp = make_qp();
  const uint32_t empty = process().slot() == 77 ? 78 : 77;
  ASSERT_EQ(to_init(*qp), 0);
  shm::SendLock sends(shared(*qp).send_lock);
  {
    // The service thread waits here, and then for the send lock. A search before the reset would set its timer.
    std::lock_guard copies(process().remapper().copy_mutex());
    ASSERT_EQ(to_rtr(*qp, shm::number_of(empty, 5)), 0);
    ASSERT_EQ(move(*qp, QpState::kReset), 0);
    sends.lock();
  }
  EXPECT_EQ(next_due(process()), idle) << "there is nothing to come again for";
  sends.unlock();
}

TEST_F(ShmTarget, Find_AddressOfAnotherHost_FailsWithEhostunreach) {
  const Gid elsewhere{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 77}};
  b = make_qp();
  AddressVector vector;
  vector.is_global = true;
  vector.dgid = elsewhere;
  EXPECT_EQ(peers().find(b->number(), vector, std::chrono::milliseconds(100)).error().code(), EHOSTUNREACH);
  EXPECT_FALSE(shm().reaches(vector, b->number()));
  vector.dgid = handle->query_gid(1, 1)->gid;
  EXPECT_TRUE(peers().find(b->number(), vector, std::chrono::milliseconds(100)));
  EXPECT_TRUE(shm().reaches(vector, b->number()));
  EXPECT_EQ(peers().find(5, vector, std::chrono::milliseconds(100)).error().code(), EHOSTUNREACH)
      << "no process has slot 0";
  EXPECT_EQ(peers().find(shm::number_of(shm::kMaxSlot + 1, 5), vector, std::chrono::milliseconds(100)).error().code(),
            EHOSTUNREACH);
}

/// Runs a function just before the next write to a page, as if another process had come in between.
class BeforeWrite {
 public:
  BeforeWrite(const void* page, std::function<void()> act) {
    page_ = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(page) & ~uintptr_t{kPage - 1});
    act_ = std::move(act);
    struct sigaction handler {};
    handler.sa_sigaction = [](int, siginfo_t* fault, void*) {
      const auto* const at = static_cast<const std::byte*>(fault->si_addr);
      const auto* const first = static_cast<const std::byte*>(page_);
      if (at < first || at >= first + kPage || act_ == nullptr) abort();
      mprotect(page_, kPage, PROT_READ | PROT_WRITE);
      std::exchange(act_, nullptr)();
    };
    handler.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &handler, &former_);
    mprotect(page_, kPage, PROT_READ);
  }
  ~BeforeWrite() {
    mprotect(page_, kPage, PROT_READ | PROT_WRITE);
    sigaction(SIGSEGV, &former_, nullptr);
  }
  BeforeWrite(const BeforeWrite&) = delete;
  BeforeWrite& operator=(const BeforeWrite&) = delete;
  bool has_run() const { return act_ == nullptr; }

 private:
  static constexpr size_t kPage = 4096;
  static inline void* page_ = nullptr;
  static inline std::function<void()> act_;
  struct sigaction former_ {};
};

TEST_F(ShmTarget, Take_OtherSenderPutsItsReceiveBackMeanwhile_ReceiveIsNotLost) {  // IBTA A14.3
  auto domain = std::move(*handle->open_xrcd(-1, O_CREAT));
  auto made = std::move(*handle->create_srq(*pd, {.max_wr = 4, .type = SrqType::kXrc, .xrcd = domain.get(), .cq = cq}));
  auto& srq = static_cast<Srq&>(*made);
  auto receiver = std::move(*handle->create_qp(nullptr, {.type = QpType::kXrcRecv, .xrcd = domain.get()}));
  auto& qp = static_cast<Qp&>(*receiver);
  const uint32_t sender = shm::number_of(process().slot(), shm::kSlotQp - 1);
  ASSERT_EQ(to_init(qp), 0);
  QpAttr attr;
  attr.state = QpState::kRtr;
  attr.av.is_global = true;
  attr.av.dgid = handle->query_gid(1, 1)->gid;
  attr.av.sgid_index = 1;
  attr.path_mtu = Mtu::k4096;
  attr.dest_qp_num = sender;
  ASSERT_EQ(qp.modify(attr, qp_attr::kState | qp_attr::kAv | qp_attr::kPathMtu | qp_attr::kDestQpn | qp_attr::kRqPsn |
                                qp_attr::kMaxDestRdAtomic | qp_attr::kMinRnrTimer),
            0);
  SharedTarget target = target_of(qp);
  ASSERT_TRUE(target.ready(process().slot(), sender));
  ASSERT_EQ(target.select(srq.number()), Selection::kYes);
  for (const uint64_t wr_id : {1, 2}) ASSERT_EQ(receive(srq, wr_id), 0);
  shm::ReceiveRing& ring = srq.queue().ring();
  const uint32_t other = shm::owner_tag(process().slot() + 1, 1);
  const auto theirs = ring.claim(other);
  ASSERT_TRUE(theirs);
  shm::ReceiveRing::Claim second;
  {
    const BeforeWrite meanwhile(theirs.slot, [&] { ring.put_back(theirs); });
    second = target.take();
    EXPECT_TRUE(meanwhile.has_run());
  }
  ASSERT_TRUE(second);
  EXPECT_EQ(second.slot->wr_id, 2u);
  const auto first = target.take();
  ASSERT_TRUE(first) << "the receive is lost";
  EXPECT_EQ(first.slot->wr_id, 1u);
  target.put_back(first);
  target.put_back(second);
}

}  // namespace
}  // namespace nupa::core
