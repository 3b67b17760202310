// SPDX-License-Identifier: Apache-2.0
// Messages that find the socket to another process full: what waits, what leaves when, what is lost.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "host/outbox.h"

namespace nupa::host {
namespace {

constexpr uint32_t kMoreThanFit = 2000;

Message message_of(MessageKind kind, uint32_t index = 0) {
  return {kWireMagic, kWireVersion, static_cast<uint32_t>(kind), 2, index, 1, 0};
}

class OutboxTest : public testing::Test {
 protected:
  OutboxTest() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return;
    socket_.reset(ends[0]);
    peer_.reset(ends[1]);
  }

  int send(uint32_t number) {
    Payload payload{};
    std::memcpy(payload.data(), &number, sizeof number);
    const auto sent = outbox_.send(socket_.get(), message_of(MessageKind::kPayload), -1, &payload);
    return sent ? 0 : sent.error().code();
  }
  int say(MessageKind kind, uint32_t index, int fd = -1) {
    const auto sent = outbox_.send(socket_.get(), message_of(kind, index), fd);
    return sent ? 0 : sent.error().code();
  }
  /// Sends messages until they wait; returns how many.
  uint32_t fill() {
    uint32_t count = 0;
    while (outbox_.size() == 0 && send(count) == 0) ++count;
    return count;
  }
  /// What comes, while the outbox sends what the socket has room for.
  std::vector<Received> receive_all() {
    std::vector<Received> all;
    for (;;) {
      auto received = receive_message(peer_.get());
      if (received) {
        all.push_back(std::move(*received));
      } else if (outbox_.size() == 0) {
        return all;
      } else {
        outbox_.send_waiting(socket_.get());
      }
    }
  }
  static uint32_t number_of(const Received& received) {
    uint32_t number;
    std::memcpy(&number, received.payload.data(), sizeof number);
    return number;
  }
  static MessageKind kind_of(const Received& received) { return static_cast<MessageKind>(received.message.kind); }

  base::UniqueFd socket_, peer_;
  Outbox outbox_;
};

TEST_F(OutboxTest, WhatDoesNotFitWaitsAndLeavesInOrder) {
  for (uint32_t number = 0; number < kMoreThanFit; ++number) ASSERT_EQ(0, send(number));
  ASSERT_NE(0u, outbox_.size());
  const std::vector<Received> all = receive_all();
  ASSERT_EQ(kMoreThanFit, all.size());
  for (uint32_t number = 0; number < kMoreThanFit; ++number) ASSERT_EQ(number, number_of(all[number]));
  EXPECT_EQ(0u, outbox_.take_lost());
}

TEST_F(OutboxTest, NothingOvertakesWhatWaits) {
  const uint32_t count = fill();
  ASSERT_TRUE(receive_message(peer_.get()));
  ASSERT_EQ(0, send(count));
  const std::vector<Received> all = receive_all();
  ASSERT_EQ(count, all.size());
  for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(i + 1, number_of(all[i]));
}

TEST_F(OutboxTest, MessagesOfOtherKindsKeepTheirPlaceAndTheirDescriptor) {
  const uint32_t count = fill();
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_EQ(0, say(MessageKind::kChannel, 3, channel.get()));
  ASSERT_EQ(0, send(count));
  ASSERT_EQ(0, say(MessageKind::kGoodbye, 0));
  const std::vector<Received> all = receive_all();
  ASSERT_EQ(count + 3, all.size());
  EXPECT_EQ(MessageKind::kChannel, kind_of(all[count]));
  ASSERT_EQ(1u, all[count].fd_count);
  const uint64_t one = 1;
  uint64_t read = 0;
  EXPECT_EQ(8, ::write(all[count].fds[0].get(), &one, sizeof one));
  EXPECT_EQ(8, ::read(channel.get(), &read, sizeof read));
  EXPECT_EQ(count, number_of(all[count + 1]));
  EXPECT_EQ(MessageKind::kGoodbye, kind_of(all[count + 2]));
}

TEST_F(OutboxTest, DestroyedChannel_IsNotReported) {
  constexpr MessageKind kOthers[] = {MessageKind::kHello, MessageKind::kObserver, MessageKind::kGoodbye};
  const uint32_t count = fill();
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_EQ(0, say(MessageKind::kChannel, 3, channel.get()));
  ASSERT_EQ(0, say(MessageKind::kChannel, 4, channel.get()));
  for (const MessageKind kind : kOthers) ASSERT_EQ(0, say(kind, 3));
  outbox_.forget_channel(3);
  ASSERT_EQ(0, say(MessageKind::kChannelDestroyed, 3));
  std::vector<Received> all = receive_all();
  ASSERT_EQ(count + 2 + std::size(kOthers), all.size());
  for (const MessageKind kind : kOthers) {
    EXPECT_EQ(kind, kind_of(all[count + 1])) << "what is no channel stays, whatever its index";
    all.erase(all.begin() + count + 1);
  }
  EXPECT_EQ(MessageKind::kChannel, kind_of(all[count]));
  EXPECT_EQ(4u, all[count].message.index);
  EXPECT_EQ(MessageKind::kChannelDestroyed, kind_of(all[count + 1]));
  EXPECT_EQ(3u, all[count + 1].message.index);
}

TEST_F(OutboxTest, BeyondTheBoundMessagesAreLostAndCounted) {
  const uint32_t count = fill() + static_cast<uint32_t>(Outbox::kMostMessages) - 1;
  for (uint32_t number = count - static_cast<uint32_t>(Outbox::kMostMessages) + 1; number < count; ++number)
    ASSERT_EQ(0, send(number));
  EXPECT_EQ(EAGAIN, send(count));
  EXPECT_EQ(EAGAIN, send(count));
  EXPECT_EQ(2u, outbox_.take_lost());
  EXPECT_EQ(0u, outbox_.take_lost());
  EXPECT_EQ(0, say(MessageKind::kGoodbye, 0));
  const std::vector<Received> all = receive_all();
  ASSERT_EQ(count + 1, all.size());
  for (uint32_t number = 0; number < count; ++number) ASSERT_EQ(number, number_of(all[number]));
  EXPECT_EQ(MessageKind::kGoodbye, kind_of(all[count]));
}

TEST_F(OutboxTest, NothingWaitsForAProcessThatIsGone) {
  fill();
  peer_.reset();
  outbox_.send_waiting(socket_.get());
  EXPECT_EQ(0u, outbox_.size());
  EXPECT_EQ(0u, outbox_.take_lost()) << "nobody is there to lose them";
  EXPECT_EQ(EPIPE, send(0));
  EXPECT_EQ(0u, outbox_.size());
}

TEST_F(OutboxTest, NothingWaitsForAProcessThatReadAllAndWent) {
  // The kernel then says EPIPE; of what it had not read it would say ECONNRESET first.
  const uint32_t count = fill();
  for (uint32_t number = 0; number + 1 < count; ++number) ASSERT_TRUE(receive_message(peer_.get())) << number;
  peer_.reset();
  outbox_.send_waiting(socket_.get());
  EXPECT_EQ(0u, outbox_.size());
  EXPECT_EQ(0u, outbox_.take_lost()) << "nobody is there to lose them";
}

TEST_F(OutboxTest, WhatLeftArrivesAlsoFromAProcessThatEndedWithoutReadingAll) {
  ASSERT_TRUE(send_message(peer_.get(), message_of(MessageKind::kGoodbye), nullptr, 0));
  for (uint32_t number = 0; number < 3; ++number) ASSERT_EQ(0, send(number));
  socket_.reset();
  for (uint32_t number = 0; number < 3; ++number) {
    const auto received = receive_message(peer_.get());
    ASSERT_TRUE(received) << number;
    EXPECT_EQ(number, number_of(*received));
  }
  const auto end = receive_message(peer_.get());
  ASSERT_FALSE(end);
  EXPECT_EQ(ENOTCONN, end.error().code());
}

}  // namespace
}  // namespace nupa::host
