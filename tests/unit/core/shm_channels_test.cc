// SPDX-License-Identifier: Apache-2.0
/// Tests of completion channels of other processes.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "shm_fixture.h"
#include "shm_processes.h"

namespace nupa::core {
namespace {

constexpr size_t kManyChannels = 40;
constexpr int kEventRounds = 3;

/// Has an event of each of so many completion channels in each round, and rounds of events of all.
bool take_events_of_channels(ShmEnd& end, const ShmLine& line) {
  std::vector<std::unique_ptr<CompletionChannel>> channels;
  std::vector<Cq*> queues;
  std::vector<Qp*> qps;
  uint32_t connected = 0;
  if (!line.get(&connected)) return false;
  bool good = true;
  for (size_t i = 0; i < kManyChannels; ++i) {
    channels.push_back(std::move(*end.handle->create_channel()));
    queues.push_back(end.make_cq(8, channels.back().get()));
    if (i >= connected) continue;
    qps.push_back(end.make_qp(QpType::kRc, nullptr, queues[i]));
    ShmAddress peer;
    good = good && exchange_and_connect(end, line, *qps[i], &peer) && end.receive(*qps[i], i) == 0 &&
           queues[i]->arm(false) == 0;
  }
  good = good && line.go();
  for (int round = 0; good && round < kEventRounds; ++round) {
    for (size_t i = 0; good && i < connected; ++i) {
      const auto event = channels[i]->wait();
      good = event && *event == queues[i] && end.next(queues[i]).status == WcStatus::kSuccess &&
             end.receive(*qps[i], i) == 0 && queues[i]->arm(false) == 0;
    }
    good = good && line.go();
  }
  good = good && line.wait();
  end.qps.clear();
  end.cqs.clear();
  end.cq = nullptr;
  return good;
}

constexpr uint32_t kChannelsBefore = 1100;

/// The same behind more channels than a table of 1,024 has, and with completion queues beyond 16,384.
bool take_events_of_late_channels(ShmEnd& end, const ShmLine& line) {
  constexpr size_t kQueuesBefore = 16400;
  constexpr rlim_t kDescriptors = 4096;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kDescriptors));
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  std::vector<std::unique_ptr<CompletionChannel>> channels;
  while (channels.size() < kChannelsBefore) {
    auto channel = end.handle->create_channel();
    if (!channel) return false;
    channels.push_back(std::move(*channel));
  }
  std::vector<std::unique_ptr<CompletionQueue>> queues;
  while (queues.size() < kQueuesBefore) {
    auto queue = end.handle->create_cq({.entries = 1});
    if (!queue) return false;
    queues.push_back(std::move(*queue));
  }
  return take_events_of_channels(end, line);
}

/// Has so many connections to the other process send in each round. False: something failed.
bool send_to_channels(ShmEnd& end, const ShmLine& line, uint32_t connected) {
  if (!line.give(connected)) return false;
  std::vector<Qp*> qps;
  for (uint32_t i = 0; i < connected; ++i) {
    qps.push_back(end.make_qp());
    ShmAddress peer;
    if (!exchange_and_connect(end, line, *qps.back(), &peer)) return false;
  }
  return line.wait();
}

bool send_round(ShmEnd& end, const ShmLine& line) {
  for (const auto& qp : end.qps)
    if (end.send(static_cast<Qp&>(*qp), 1) != 0 || end.next().status != WcStatus::kSuccess) return false;
  return line.wait();
}

TEST_F(ShmShared, Events_ProcessHasNoDescriptors_ReachEachChannelAndNoConnectionEnds) {
  start(take_events_of_channels);
  ASSERT_TRUE(send_to_channels(end, line, kManyChannels));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // First none is free, then the part for others' channels is smaller than their number, then there is room.
  for (const rlim_t most : {rlim_t{0}, rlim_t{10 * host::Peer::kPartOfDescriptors}, before.rlim_cur}) {
    const rlimit limit{most, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_TRUE(send_round(end, line)) << most;
    EXPECT_LE(host::Peer::channels_held(), most / host::Peer::kPartOfDescriptors);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const auto& qp : end.qps) EXPECT_EQ(end.state_of(static_cast<Qp&>(*qp)), QpState::kRts);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmShared, Events_ChannelsBeyondTheFirstThousand_AreDelivered) {
  constexpr uint32_t kConnected = 3;
  start(take_events_of_late_channels);
  ASSERT_TRUE(send_to_channels(end, line, kConnected));
  for (int round = 0; round < kEventRounds; ++round) ASSERT_TRUE(send_round(end, line));
  EXPECT_TRUE(soon([] { return host::Peer::channels_held() == kConnected; })) << host::Peer::channels_held();
  ASSERT_EQ(end.process().node().peers().size(), 1u);
  EXPECT_TRUE(end.process().node().peers().front()->signal_channel(kChannelsBefore)) << "the first of them";
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmShared, ChannelDescriptors_OfAPeer_AreOpenOnlyForChannelsWithEvents) {
  constexpr uint32_t kConnected = 3;
  start(take_events_of_channels);
  ASSERT_TRUE(send_to_channels(end, line, kConnected));
  EXPECT_EQ(host::Peer::channels_held(), 0u) << "of so many that are there";
  for (int round = 0; round < kEventRounds; ++round) ASSERT_TRUE(send_round(end, line));
  EXPECT_TRUE(soon([] { return host::Peer::channels_held() == kConnected; })) << host::Peer::channels_held();
  ASSERT_TRUE(line.go());
  expect_good_end();
  EXPECT_TRUE(soon([] { return host::Peer::channels_held() == 0; })) << "its owner has ended";
}

}  // namespace
}  // namespace nupa::core
