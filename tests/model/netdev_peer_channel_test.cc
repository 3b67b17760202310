// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"
#include "expect.h"
// Checks the lines of the peer channel, with a device that has only the functions that they call.
#include "netdev/peer_channel.cc"

namespace nupa::netdev {
namespace {

using model::Build;
using model::Case;

/// One end's memory, and how often the other end has called it. In static memory, since rings are large.
struct End {
  alignas(64)::std::byte region[kRingRegionBytes];
  ::std::byte copy[64];
  std::atomic<uint32_t> calls{};
};
End ends[2];

class Region final : public MemoryRegion {
 public:
  Region(void* addr, uint64_t length) : addr_(addr), length_(length) {}
  void* addr() const override { return addr_; }
  uint64_t length() const override { return length_; }
  uint32_t lkey() const override { return 1; }
  uint32_t rkey() const override { return 1; }
  uint32_t handle() const override { return 1; }
  int close() override { return 0; }

 private:
  void* addr_;
  uint64_t length_;
};

/// Its messages call the other end, whose ring is mapped.
class Pair final : public QueuePair {
 public:
  explicit Pair(End& peer) : peer_(peer) {}
  uint32_t number() const override { return 1; }
  QpType type() const override { return QpType::kRc; }
  uint32_t handle() const override { return 1; }
  void* user_context() const override { return nullptr; }
  int modify(const QpAttr&, uint32_t) override { return 0; }
  int query(QpAttr*, QpOptions*) const override { return 0; }
  void post_begin() override {}
  int post(const SendWr&) override {
    peer_.calls.fetch_add(1, std::memory_order_acq_rel);
    return 0;
  }
  void post_end() override {}
  int post_recv(const RecvWr&) override { return 0; }
  Result<::std::shared_ptr<::std::byte>> map_remote(uint32_t, uint64_t, uint64_t, uint32_t) override {
    return ::std::shared_ptr<::std::byte>(peer_.region, [](::std::byte*) {});
  }
  int attach_multicast(const Gid&, uint16_t) override { return 0; }
  int detach_multicast(const Gid&, uint16_t) override { return 0; }
  int close() override { return 0; }

 private:
  End& peer_;
};

auto nothing() { return nupa::fail(ENOTSUP, "not needed here"); }

class OneEndsDevice final : public Device {
 public:
  OneEndsDevice(End& own, End& peer) : own_(own), peer_(peer) {}
  const ::std::string& name() const override { return name_; }
  DeviceAttr query() const override { return {}; }
  Result<PortAttr> query_port(uint8_t) const override { return nothing(); }
  Result<GidEntry> query_gid(uint8_t, uint32_t) const override { return nothing(); }
  Result<uint16_t> query_pkey(uint8_t, uint32_t) const override { return nothing(); }
  MemoryDomain memory_domain() const override { return {}; }
  uint64_t clock() const override { return 0; }
  uint64_t clock_khz() const override { return 1; }
  Result<::std::unique_ptr<ProtectionDomain>> alloc_pd() override { return nothing(); }
  Result<::std::unique_ptr<MemoryRegion>> reg_mr(ProtectionDomain&, void*, size_t, uint64_t, uint32_t) override {
    return nothing();
  }
  Result<::std::unique_ptr<MemoryRegion>> reg_dmabuf_mr(ProtectionDomain&, uint64_t, size_t, uint64_t, int,
                                                        uint32_t) override {
    return nothing();
  }
  Result<::std::unique_ptr<MemoryRegion>> alloc_mr(ProtectionDomain&, size_t length, uint32_t, MemorySource) override {
    return ::std::make_unique<Region>(length == kRingRegionBytes ? own_.region : own_.copy, length);
  }
  Result<::std::unique_ptr<MemoryRegion>> alloc_null_mr(ProtectionDomain&) override { return nothing(); }
  Result<::std::unique_ptr<MemoryRegion>> reg_dm_mr(ProtectionDomain&, DeviceMemory&, uint64_t, size_t,
                                                    uint32_t) override {
    return nothing();
  }
  int rereg_mr(MemoryRegion&, uint32_t, ProtectionDomain*, void*, size_t, uint32_t) override { return ENOTSUP; }
  int advise_mr(ProtectionDomain&, MrAdvice, uint32_t, const Sge*, uint32_t) override { return ENOTSUP; }
  Result<::std::unique_ptr<MemoryWindow>> alloc_mw(ProtectionDomain&, MwType) override { return nothing(); }
  Result<::std::unique_ptr<DeviceMemory>> alloc_dm(size_t, uint32_t) override { return nothing(); }
  Result<::std::unique_ptr<CompletionChannel>> create_channel() override { return nothing(); }
  Result<::std::unique_ptr<CompletionQueue>> create_cq(const CqOptions&) override { return nothing(); }
  Result<::std::unique_ptr<SharedReceiveQueue>> create_srq(ProtectionDomain&, const SrqOptions&) override {
    return nothing();
  }
  Result<::std::unique_ptr<QueuePair>> create_qp(ProtectionDomain*, const QpOptions&) override {
    return ::std::make_unique<Pair>(peer_);
  }
  Result<::std::unique_ptr<QueuePair>> open_qp(XrcDomain&, uint32_t, void*) override { return nothing(); }
  Result<::std::unique_ptr<AddressHandle>> create_ah(ProtectionDomain&, const AddressVector&) override {
    return nothing();
  }
  Result<::std::unique_ptr<XrcDomain>> open_xrcd(int, int) override { return nothing(); }
  int async_fd() const override { return -1; }
  Result<AsyncEvent> next_event(const ::std::function<void(const AsyncEvent&)>&) override { return nothing(); }
  int close() override { return 0; }

 private:
  End& own_;
  End& peer_;
  ::std::string name_;
};

class Domain final : public ProtectionDomain {
 public:
  uint32_t handle() const override { return 1; }
  int close() override { return 0; }
};

class Queue final : public CompletionQueue {
 public:
  int poll(WorkCompletion*, int) override { return 0; }
  int poll_ex(WorkCompletionEx*, int) override { return 0; }
  int arm(bool) override { return 0; }
  int resize(uint32_t) override { return 0; }
  int moderate(uint16_t, uint16_t) override { return 0; }
  uint32_t entries() const override { return 1; }
  uint32_t handle() const override { return 1; }
  void* user_context() const override { return nullptr; }
  CompletionChannel* channel() const override { return nullptr; }
  uint32_t events_delivered() const override { return 0; }
  int close() override { return 0; }
};

/// A channel's two ends, which have each other's ring mapped.
struct Channels {
  ::std::unique_ptr<PeerChannel> end[2];

  static void sleep(int number, uint32_t* calls) {
    while (ends[number].calls.load(std::memory_order_acquire) == *calls) _mm_pause();
    *calls = ends[number].calls.load(std::memory_order_acquire);
  }
  void put(uint32_t frame) {
    ::std::byte* const room = end[0]->reserve();
    model::require(room != nullptr, "there is room");
    std::memcpy(room, &frame, sizeof frame);
    end[0]->commit(sizeof frame);
  }
  /// Takes the next frame, if there is one; it has to be this one.
  bool take(uint32_t expected) {
    const auto frame = end[1]->next();
    model::require(end[1]->error() == 0, "the ring is whole");
    if (!frame) return false;
    uint32_t got;
    std::memcpy(&got, frame->data(), sizeof got);
    model::require(got == expected, "frames keep their order");
    end[1]->done();
    return true;
  }
};

Channels& make_channels(Case& made) {
  auto& channels = made.make<Channels>();
  Domain domain;
  Queue queue;
  for (int i = 0; i < 2; ++i) {
    ends[i].calls.store(0);
    OneEndsDevice device(ends[i], ends[1 - i]);
    channels.end[i] = *PeerChannel::create(device, domain, queue, 0);
  }
  for (const auto& channel : channels.end) channel->start_sending();
  return channels;
}

/// The receiver sleeps until frames come.
void sleeps_until_frames_come(Case& made, uint32_t count) {
  auto& channels = make_channels(made);
  made.thread("receiver", [&channels, count] {
    uint32_t calls = 0;
    for (uint32_t seen = 0; seen < count;) {
      if (channels.take(seen)) {
        ++seen;
        continue;
      }
      if (channels.end[1]->wait_for_frames()) Channels::sleep(1, &calls);
      channels.end[1]->awake();
    }
  });
  made.thread("sender", [&channels, count] {
    for (uint32_t i = 0; i < count; ++i) {
      channels.put(i);
      channels.end[0]->flush();
    }
  });
}
void sleeps_until_a_frame_comes(Case& made) { sleeps_until_frames_come(made, 1); }
void sleeps_until_two_frames_come(Case& made) { sleeps_until_frames_come(made, 2); }

/// The ring is full: the sender sleeps until the receiver has read on, and writes where that has read.
void sleeps_until_there_is_room(Case& made) {
  auto& channels = make_channels(made);
  uint32_t frames = 0;
  for (::std::byte* room; (room = channels.end[0]->reserve()) != nullptr; ++frames) {
    ::std::memcpy(room, &frames, sizeof frames);
    channels.end[0]->commit(kMaxFrameBytes);
  }
  channels.end[0]->flush();
  made.thread("sender", [&channels, frames] {
    uint32_t calls = 0;
    while (channels.end[0]->wait_for_room()) Channels::sleep(0, &calls);
    channels.put(frames);
  });
  made.thread("receiver", [&channels] {
    // It makes just enough room, and nothing after it wakes the sender.
    model::require(channels.take(0), "there are frames");
    channels.end[1]->give_back();
  });
}

/// The next frame but one goes to the beginning of the ring, behind a record that says so, where frames have been read.
void goes_round_the_end_of_the_ring(Case& made) {
  auto& channels = make_channels(made);
  constexpr auto kFrames = static_cast<uint32_t>(kRingBytes / kMaxRecordBytes) - 1;
  for (uint32_t frame = 0; frame < kFrames; ++frame) {
    ::std::memcpy(channels.end[0]->reserve(), &frame, sizeof frame);
    channels.end[0]->commit(kMaxFrameBytes);
    model::require(channels.take(frame), "the frame is there");
    channels.end[1]->give_back();
  }
  channels.end[0]->flush();
  made.thread("sender", [&channels] {
    for (uint32_t frame = kFrames; frame < kFrames + 2; ++frame) {
      ::std::byte* const room = channels.end[0]->reserve();
      model::require(room != nullptr, "there is room");
      std::memcpy(room, &frame, sizeof frame);
      channels.end[0]->commit(kMaxFrameBytes);
    }
  });
  made.thread("receiver", [&channels] {
    for (uint32_t frame = kFrames; frame < kFrames + 2; ++frame)
      while (!channels.take(frame)) _mm_pause();
    model::require(channels.end[1]->error() == 0, "the ring is whole");
  });
}

TEST(ModelNetdevPeerChannel, SleepingReceiver_OneFrame_WakesIt) { model::expect_holds(sleeps_until_a_frame_comes); }
TEST(ModelNetdevPeerChannel, SleepingReceiver_TwoFrames_WakeIt) { model::expect_holds(sleeps_until_two_frames_come); }
TEST(ModelNetdevPeerChannel, FullRing_FramesRead_WakeTheSender) { model::expect_holds(sleeps_until_there_is_room); }
TEST(ModelNetdevPeerChannel, EndOfTheRing_FramesAreWhole) { model::expect_holds(goes_round_the_end_of_the_ring); }

TEST(ModelNetdevPeerChannel, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {sleeps_until_a_frame_comes, sleeps_until_two_frames_come, sleeps_until_there_is_room};
  EXPECT_EQ(model::needed_orders(cases, {"netdev/peer_channel.cc", "netdev/ring.h"}),
            (::std::vector<::std::string>{
                "PeerChannel::reserve load acquire: x86 relaxed, C++ acquire",
                "PeerChannel::commit store release: x86 relaxed, C++ release",
                "PeerChannel::flush fence seq_cst: x86 seq_cst, C++ seq_cst",
                "PeerChannel::flush load relaxed: x86 relaxed, C++ relaxed",
                "PeerChannel::flush exchange seq_cst: x86 relaxed, C++ relaxed",
                "PeerChannel::wait_for_room store relaxed: x86 relaxed, C++ relaxed",
                "PeerChannel::wait_for_room fence seq_cst: x86 seq_cst, C++ seq_cst",
                "PeerChannel::next load acquire: x86 relaxed, C++ acquire",
                "PeerChannel::give_back store release: x86 relaxed, C++ release",
                "PeerChannel::give_back fence seq_cst: x86 seq_cst, C++ seq_cst",
                "PeerChannel::give_back load relaxed: x86 relaxed, C++ relaxed",
                "PeerChannel::give_back exchange seq_cst: x86 relaxed, C++ relaxed",
                "PeerChannel::wait_for_frames store relaxed: x86 relaxed, C++ relaxed",
                "PeerChannel::wait_for_frames fence seq_cst: x86 seq_cst, C++ seq_cst",
                "PeerChannel::wait_for_frames load acquire: x86 relaxed, C++ relaxed",
                "PeerChannel::awake store relaxed: x86 relaxed, C++ relaxed",
            }));
}

}  // namespace
}  // namespace nupa::netdev
