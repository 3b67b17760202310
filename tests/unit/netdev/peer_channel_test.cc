// SPDX-License-Identifier: Apache-2.0
// Both ends of a channel, moved by hand: which words go over it and when, how positions are checked, and that no
// wake-up is lost.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "netdev/peer_channel.h"

namespace nupa::netdev {
namespace {

constexpr std::chrono::seconds kChannelLimit{10};
constexpr uint32_t kLine = kRecordAlign;
// The upper two bits of a word.
constexpr uint32_t kWordData = 0, kWordRead = 1, kWordWake = 2, kWordProbe = 3;

/// One end of a channel, with what has come to it.
struct ChannelEnd {
  std::unique_ptr<CompletionQueue> cq;
  std::unique_ptr<PeerChannel> channel;
  std::vector<uint32_t> words;

  bool poll() {
    WorkCompletion done;
    if (cq->poll(&done, 1) != 1) return false;
    if ((done.wc_flags & wc_flag::kWithImm) != 0) words.push_back(ntohl(done.imm_data));
    channel->on_completion(done);
    return true;
  }
  /// The next word's kind; 4: there is none.
  uint32_t next_word() {
    const size_t before = words.size();
    const auto until = std::chrono::steady_clock::now() + kChannelLimit;
    while (words.size() == before && std::chrono::steady_clock::now() < until)
      if (!poll()) std::this_thread::yield();
    return words.size() == before ? 4 : words[before] >> 30;
  }
  /// The peer sends a word, which says this instead.
  void receive_word(ChannelEnd& peer, uint32_t word) {
    peer.channel->probe();
    WorkCompletion done;
    const auto until = std::chrono::steady_clock::now() + kChannelLimit;
    while (cq->poll(&done, 1) != 1 || (done.wc_flags & wc_flag::kWithImm) == 0)
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "no word comes";
    done.imm_data = htonl(word);
    channel->on_completion(done);
  }
  RingWords* ring() const { return reinterpret_cast<RingWords*>(channel->info().address); }
  /// Puts a frame of so many bytes, and sends it.
  bool send(uint32_t bytes, uint8_t mark = 0) {
    std::byte* const room = channel->reserve();
    if (room == nullptr) return false;
    std::memset(room, mark, bytes);
    channel->commit(bytes);
    return true;
  }
  /// Reads all frames that are there.
  int read_all() {
    int frames = 0;
    for (; channel->next(); ++frames) channel->done();
    return frames;
  }
};

class NetdevPeerChannel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv("NUPA_TRANSPORT", GetParam(), 1);
    auto opened = open_device("nupa0");
    ASSERT_TRUE(opened) << opened.error().what();
    device_ = std::move(*opened);
    pd_ = std::move(*device_->alloc_pd());
    const ConnectOptions path{
        .dgid = device_->query_gid(1, 1)->gid, .max_rd_atomic = 1, .path_mtu = Mtu::k1024, .hop_limit = 64};
    for (ChannelEnd* end : {&one, &other}) {
      end->cq = std::move(*device_->create_cq({.entries = PeerChannel::kMaxCompletions}));
      auto channel = PeerChannel::create(*device_, *pd_, *end->cq, end == &one ? 7 : 9);
      ASSERT_TRUE(channel) << channel.error().what();
      end->channel = std::move(*channel);
    }
    ASSERT_EQ(0, one.channel->connect(path, other.channel->info()));
    ASSERT_EQ(0, other.channel->connect(path, one.channel->info()));
    one.channel->start_sending();
    other.channel->start_sending();
    ASSERT_EQ(std::strcmp(GetParam(), "shm") == 0, one.channel->is_mapped());
  }
  void TearDown() override {
    for (ChannelEnd* end : {&one, &other}) {
      end->channel.reset();
      end->cq.reset();
    }
    pd_.reset();
    device_.reset();
    unsetenv("NUPA_TRANSPORT");
  }
  ChannelEnd one, other;

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProtectionDomain> pd_;
};
class NetdevMappedChannel : public NetdevPeerChannel {};
class NetdevMessageChannel : public NetdevPeerChannel {};

TEST_P(NetdevMappedChannel, Reserve_HeadThatThePeerCannotHave_GivesNoRoom) {
  while (one.send(60000)) {
  }
  const uint64_t tail = other.ring()->tail.load();
  std::atomic<uint64_t>& head = other.ring()->head;
  for (const uint64_t wrong : {tail + kLine, tail + kRingBytes, UINT64_MAX, uint64_t{1} << 63}) {
    head.store(wrong);
    EXPECT_EQ(nullptr, one.channel->reserve()) << wrong;
  }
  // Half of it has been read, and is filled again: an older position gives none of it back once more.
  const uint64_t half = tail / 2 / kLine * kLine;
  head.store(half);
  EXPECT_NE(nullptr, one.channel->reserve());
  while (one.send(60000)) {
  }
  for (const uint64_t older : {half - kLine, uint64_t{0}}) {
    head.store(older);
    EXPECT_EQ(nullptr, one.channel->reserve()) << older;
  }
  head.store(other.ring()->tail.load());  // all of it
  EXPECT_NE(nullptr, one.channel->reserve());
  EXPECT_EQ(0, one.channel->error());
}

TEST_P(NetdevMappedChannel, Flush_PeerThatSleeps_IsWokenOnce) {
  // Whoever does not sleep is not woken: the next word is another one.
  ASSERT_TRUE(one.send(100));
  one.channel->flush();
  one.channel->probe();
  ASSERT_EQ(kWordProbe, other.next_word());
  ASSERT_EQ(kWordProbe, one.next_word());  // its answer
  EXPECT_EQ(1, other.read_all());
  EXPECT_TRUE(other.channel->wait_for_frames());
  EXPECT_EQ(1u, other.ring()->sleeps.load());
  ASSERT_TRUE(one.send(100));
  one.channel->flush();
  ASSERT_EQ(kWordWake, other.next_word());
  EXPECT_EQ(0u, other.ring()->sleeps.load());
  ASSERT_TRUE(one.send(100));
  one.channel->flush();
  one.channel->flush();
  one.channel->probe();
  ASSERT_EQ(kWordProbe, other.next_word());
  EXPECT_EQ(2, other.read_all());
  // It looked away and is awake again by itself.
  EXPECT_TRUE(other.channel->wait_for_frames());
  other.channel->awake();
  ASSERT_TRUE(one.send(100));
  one.channel->flush();
  one.channel->probe();
  ASSERT_EQ(kWordProbe, other.next_word());
}

TEST_P(NetdevMappedChannel, WaitForFrames_FrameThatIsThere_KeepsItAwake) {
  EXPECT_TRUE(other.channel->wait_for_frames());
  ASSERT_TRUE(one.send(100));
  EXPECT_FALSE(other.channel->wait_for_frames());
  EXPECT_EQ(1, other.read_all());
  EXPECT_TRUE(other.channel->wait_for_frames());
}

TEST_P(NetdevMappedChannel, GiveBack_PeerThatWaitsForRoom_IsWokenOnce) {
  ASSERT_TRUE(one.send(100));
  EXPECT_FALSE(one.channel->wait_for_room());  // there is some
  other.ring()->waits.store(0);
  while (one.send(60000)) {
  }
  EXPECT_TRUE(one.channel->wait_for_room());
  EXPECT_EQ(1u, other.ring()->waits.load());
  other.channel->give_back();  // nothing has been read since
  EXPECT_EQ(1u, other.ring()->waits.load());
  EXPECT_GT(other.read_all(), 10);
  EXPECT_EQ(0u, other.ring()->head.load());
  other.channel->give_back();
  EXPECT_EQ(other.ring()->tail.load(), other.ring()->head.load());
  ASSERT_EQ(kWordWake, one.next_word());
  EXPECT_EQ(0u, other.ring()->waits.load());
  EXPECT_FALSE(one.channel->wait_for_room());
  other.ring()->waits.store(0);
  // Nobody waits: the next word is another one.
  ASSERT_TRUE(one.send(100));
  EXPECT_EQ(1, other.read_all());
  other.channel->give_back();
  other.channel->probe();
  ASSERT_EQ(kWordProbe, one.next_word());
}

TEST_P(NetdevMappedChannel, GiveBack_PositionOfMoreLinesThanAWordHolds_IsStillOfWhatWasRead) {
  // A word counts lines in its lower 30 bits. At 128 GiB the number of lines needs the upper two, too.
  constexpr uint64_t kRounds = (uint64_t{128} << 30) / kRingBytes;
  constexpr uint64_t kLinesOfRing = kRingBytes / kLine, kLinesOfWord = uint64_t{1} << 30;
  // In each round the peer says that it has written a whole ring, all of which is to be skipped.
  *reinterpret_cast<Record*>(one.ring() + 1) = {Record::kSkip, 0};
  for (uint64_t round = 1; round <= kRounds; ++round) {
    const auto lines = static_cast<uint32_t>(round * kLinesOfRing % kLinesOfWord);
    ASSERT_NO_FATAL_FAILURE(one.receive_word(other, kWordData << 30 | lines));
    ASSERT_EQ(0, one.read_all());
    ASSERT_EQ(0, one.channel->error()) << round;
    while (other.poll()) {
    }
  }
  one.channel->give_back();
  EXPECT_EQ(kWordRead, other.next_word());
  EXPECT_EQ(kWordRead << 30, other.words.back());
  EXPECT_EQ(0, other.channel->error());
}

TEST_P(NetdevMessageChannel, Flush_MessagesThatThePeerHasNotRead_Are192AtMost) {
  constexpr int kFrames = 300, kMost = 192;
  for (int i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(one.send(100));
    one.channel->flush();
    while (one.poll()) {
    }
  }
  one.channel->probe();
  int data = 0;
  for (uint32_t word; (word = other.next_word()) == kWordData;) ++data;
  EXPECT_EQ(kMost, data);
  EXPECT_EQ(kMost, other.read_all());
  ASSERT_EQ(kWordProbe, one.next_word());
  EXPECT_GT(one.channel->unflushed(), 0u);
  // Once it has read them, all others come as one message.
  other.channel->give_back();
  ASSERT_EQ(kWordRead, one.next_word());
  EXPECT_EQ(0u, one.channel->unflushed());
  ASSERT_EQ(kWordData, other.next_word());
  EXPECT_EQ(kFrames - kMost, other.read_all());
  one.channel->probe();
  ASSERT_EQ(kWordProbe, other.next_word());
}

TEST_P(NetdevMessageChannel, GiveBack_After48MessagesOrAnEighthOfTheRing_IsOneWord) {
  const auto exchange = [&](uint32_t bytes) {
    ASSERT_TRUE(one.send(bytes));
    one.channel->flush();
    ASSERT_EQ(kWordData, other.next_word());
    ASSERT_EQ(1, other.read_all());
    other.channel->give_back();
  };
  for (int turn = 0; turn < 2; ++turn) {
    for (int i = 0; i < 47; ++i) exchange(100);
    other.channel->probe();
    ASSERT_EQ(kWordProbe, one.next_word()) << turn;
    ASSERT_EQ(kWordProbe, other.next_word());
    exchange(100);
    ASSERT_EQ(kWordRead, one.next_word()) << turn;
    EXPECT_EQ((turn + 1) * 48 * record_bytes(100) / kLine, one.words.back() & 0x3fffffff);
  }
  for (int i = 0; i < 4; ++i) exchange(60000);
  other.channel->probe();
  ASSERT_EQ(kWordProbe, one.next_word());
  ASSERT_EQ(kWordProbe, other.next_word());
  exchange(60000);
  ASSERT_EQ(kWordRead, one.next_word());
  EXPECT_EQ(0, one.channel->error() + other.channel->error());
}

TEST_P(NetdevPeerChannel, Frames_OfManyRounds_ComeOverTheRingsEnd) {
  uint8_t mark = 0;
  for (uint64_t bytes = 0; bytes < 3 * kRingBytes; bytes += 65000) {
    ASSERT_TRUE(one.send(65000, ++mark));
    one.channel->flush();
    std::optional<std::span<const std::byte>> frame;
    const auto until = std::chrono::steady_clock::now() + kChannelLimit;
    while (!(frame = other.channel->next()) && std::chrono::steady_clock::now() < until) other.poll();
    ASSERT_TRUE(frame);
    ASSERT_EQ(65000u, frame->size());
    EXPECT_EQ(std::byte{mark}, frame->front());
    EXPECT_EQ(std::byte{mark}, frame->back());
    other.channel->done();
    other.channel->give_back();
    while (one.poll()) {
    }
  }
  EXPECT_EQ(0, one.channel->error() + other.channel->error());
}

TEST_P(NetdevPeerChannel, Words_MoreThanTheQueueHolds_AllCome) {
  // Each takes a receive, which is posted again.
  constexpr size_t kWords = 600;
  EXPECT_EQ(0, one.channel->round_trip_ns());
  for (size_t i = 0; i < kWords; ++i) {
    one.channel->probe();
    ASSERT_EQ(kWordProbe, other.next_word()) << i;
    ASSERT_EQ(kWordProbe, one.next_word()) << i;
  }
  EXPECT_EQ(kWords, one.words.size());
  EXPECT_EQ(kWords, other.words.size());
  EXPECT_GT(one.channel->round_trip_ns(), 0);
  EXPECT_EQ(0, other.channel->round_trip_ns());  // it has asked nothing
  EXPECT_EQ(0, one.channel->error() + other.channel->error());
}

TEST_P(NetdevPeerChannel, OnWord_DataOfMoreThanARing_EndsItAtOnce) {
  constexpr uint32_t kLines = kRingBytes / kLine;
  one.receive_word(other, kWordData << 30 | kLines);
  EXPECT_EQ(0, one.channel->error());
  one.receive_word(other, kWordData << 30 | 2 * kLines);  // so much after that
  EXPECT_EQ(0, one.channel->error());
  other.receive_word(one, kWordData << 30 | (kLines + 1));
  EXPECT_EQ(EPROTO, other.channel->error());
  one.receive_word(other, kWordData << 30 | (2 * kLines - 1));  // back
  EXPECT_EQ(EPROTO, one.channel->error());
}

TEST_P(NetdevPeerChannel, OnWord_AnswerThatNobodyAskedFor_IsNoRoundTrip) {
  constexpr uint32_t kAnswer = 1u << 29;
  other.receive_word(one, kWordProbe << 30 | kAnswer);
  EXPECT_EQ(0, other.channel->round_trip_ns());
  EXPECT_EQ(0, other.channel->error());
}

WorkCompletion completion(uint64_t wr_id, WcStatus status, WcOpcode opcode, uint32_t flags = 0) {
  WorkCompletion made{};
  made.wr_id = wr_id;
  made.status = status;
  made.opcode = opcode;
  made.wc_flags = flags;
  return made;
}

TEST_P(NetdevPeerChannel, OnCompletion_WhatNoChannelSends_EndsIt) {
  const uint64_t receive = one.channel->number() * PeerChannel::kKinds, send = receive + 1;
  one.channel->on_completion(completion(send, WcStatus::kSuccess, WcOpcode::kRdmaWrite));
  EXPECT_EQ(0, one.channel->error());
  one.channel->on_completion(completion(receive, WcStatus::kSuccess, WcOpcode::kRecvRdmaWithImm));
  EXPECT_EQ(EPROTO, one.channel->error());  // without its word
  const uint64_t there = other.channel->number() * PeerChannel::kKinds;
  other.channel->on_completion(completion(there, WcStatus::kSuccess, WcOpcode::kRecv, wc_flag::kWithImm));
  EXPECT_EQ(EPROTO, other.channel->error());
  other.channel->on_completion(completion(there, WcStatus::kRetryExcErr, WcOpcode::kRecv));
  EXPECT_EQ(EPROTO, other.channel->error());  // the first reason stays
}

TEST_P(NetdevPeerChannel, OnCompletion_Failure_EndsIt) {
  one.channel->on_completion(
      completion(one.channel->number() * PeerChannel::kKinds + 1, WcStatus::kRetryExcErr, WcOpcode::kRdmaWrite));
  EXPECT_EQ(EIO, one.channel->error());
}

const auto kWay = [](const auto& way) { return std::string(way.param); };
INSTANTIATE_TEST_SUITE_P(Ways, NetdevPeerChannel, ::testing::Values("shm", "roce"), kWay);
INSTANTIATE_TEST_SUITE_P(Ways, NetdevMappedChannel, ::testing::Values("shm"), kWay);
INSTANTIATE_TEST_SUITE_P(Ways, NetdevMessageChannel, ::testing::Values("roce"), kWay);

}  // namespace
}  // namespace nupa::netdev
