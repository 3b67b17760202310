// SPDX-License-Identifier: Apache-2.0
/// Tests of messages through channels.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ccl/algorithms/messages/folded.h"
#include "ccl/channel/rdma_channel.h"
#include "ccl/channel/shm_channel.h"
#include "ccl/p2p/message_peer.h"
#include "channels.h"

namespace nupa::ccl {
namespace {

using Pointer = std::shared_ptr<Message>;

/// Two ends of the messages between two ranks, with the receives of one of them.
class CclMessagePeer : public ::testing::Test {
 protected:
  void SetUp() override {
    sender.set_channel(&pair.ends[0]);
    receiver.set_channel(&pair.ends[1]);
  }
  Pointer send(const std::string& text, int32_t tag, uint8_t type = Message::kNoType) {
    auto message = std::make_shared<Message>();
    texts.push_back(std::make_unique<std::string>(text));
    message->is_send = true;
    message->from = reinterpret_cast<const std::byte*>(texts.back()->data());
    message->bytes = text.size();
    message->tag = tag;
    message->type = type;
    sender.add_send(message);
    sender.push();
    return message;
  }
  Pointer receive(std::string* room, int32_t tag, uint8_t type = Message::kNoType) {
    auto message = std::make_shared<Message>();
    message->to = reinterpret_cast<std::byte*>(room->data());
    message->bytes = room->size();
    message->tag = tag;
    message->type = type;
    message->peer = 0;
    return message;
  }
  bool pull(const Pointer& message, bool keeps = true) {
    return receiver.pull(
        [&](uint32_t source, int32_t tag) -> Pointer {
          if (message == nullptr || message->done || !message->takes(source, tag)) return nullptr;
          return message;
        },
        [&] { return keeps; });
  }

  MappedPair pair;
  MessagePeer sender{1};
  MessagePeer receiver{0};
  std::vector<std::unique_ptr<std::string>> texts;
};

TEST_F(CclMessagePeer, Receive_MessageWithAnotherTag_IsNotTaken) {
  std::string room(5, '.');
  const Pointer message = receive(&room, 7);
  send("other", 6);
  EXPECT_TRUE(pull(message));
  EXPECT_FALSE(message->done);
  send("seven", 7);
  EXPECT_TRUE(pull(message));
  EXPECT_TRUE(message->done);
  EXPECT_EQ(room, "seven");
  std::string kept(5, '.');
  const Pointer any = receive(&kept, kAnyTag);
  EXPECT_TRUE(receiver.give_kept(*any));
  EXPECT_EQ(kept, "other");
  EXPECT_EQ(any->tag, 6);
}

TEST_F(CclMessagePeer, Pull_NoReceiveMatchesAndNoneIsKept_LeavesTheMessageInTheChannel) {
  send("early", 1);
  EXPECT_FALSE(pull(nullptr, false));
  EXPECT_FALSE(receiver.is_coming());
  EXPECT_TRUE(pair.ends[1].can_receive().is_over()) << "it was taken";
  std::string room(5, '.');
  const Pointer message = receive(&room, 1);
  EXPECT_FALSE(receiver.give_kept(*message));
  EXPECT_TRUE(pull(message, false));
  EXPECT_EQ(room, "early");
}

TEST_F(CclMessagePeer, Pull_FragmentShorterThanAHeader_StaysInTheChannel) {
  std::string room(64, '.');
  const Pointer message = receive(&room, 0);
  send_text(pair.ends[0], std::string(15, 'x'));
  EXPECT_FALSE(pull(message));
  EXPECT_FALSE(message->done);
  EXPECT_TRUE(pair.ends[1].can_receive().is_over());
}

TEST_F(CclMessagePeer, Receive_MessageTooLongForItsBuffer_IsTruncatedAndTheNextIsWhole) {
  const size_t fragment = pair.ends[0].fragment_bytes();
  const std::string large(2 * fragment, 'l');
  const Pointer sent = send(large, 1);
  EXPECT_TRUE(sent->done);
  send("next", 2);
  std::string room(fragment + 3, '.');
  std::string guarded = room + "guard";
  const Pointer message = receive(&guarded, 1);
  message->bytes = room.size();
  while (!message->done && pull(message)) {
  }
  EXPECT_EQ(message->error, EMSGSIZE);
  EXPECT_EQ(message->bytes, large.size()) << "what was sent";
  EXPECT_EQ(guarded, std::string(room.size(), 'l') + "guard");
  std::string next(4, '.');
  const Pointer second = receive(&next, 2);
  if (!receiver.give_kept(*second)) pull(second);
  EXPECT_EQ(next, "next");
  EXPECT_EQ(second->error, 0);
}

TEST_F(CclMessagePeer, Receive_BufferOfExactlyTheMessageLength_Succeeds) {
  std::string room(4, '.');
  const Pointer message = receive(&room, 1);
  send("four", 1);
  pull(message);
  EXPECT_EQ(message->error, 0);
  EXPECT_EQ(room, "four");
}

TEST_F(CclMessagePeer, Receive_TypesOfBothSidesDiffer_FailsWithEproto) {
  struct Case {
    uint8_t sent, wanted;
    int error;
  };
  for (const Case& one :
       {Case{3, 3, 0}, Case{3, 4, EPROTO}, Case{Message::kNoType, 4, 0}, Case{3, Message::kNoType, 0}}) {
    std::string room(1, '.');
    const Pointer message = receive(&room, 1, one.wanted);
    send("x", 1, one.sent);
    pull(message);
    ASSERT_TRUE(message->done);
    EXPECT_EQ(message->error, one.error) << int{one.sent} << " to " << int{one.wanted};
    EXPECT_EQ(message->came_type, one.sent);
  }
}

TEST_F(CclMessagePeer, GiveKept_MessageStillArriving_IsNotGiven) {
  const size_t fragment = pair.ends[0].fragment_bytes();
  // All pieces but the last have room.
  const std::string large(kSmall.fragments() * fragment, 'l');
  const Pointer sent = send(large, 1);
  EXPECT_FALSE(sent->done);
  EXPECT_TRUE(pull(nullptr));
  EXPECT_TRUE(receiver.is_coming());
  std::string room(large.size(), '.');
  const Pointer message = receive(&room, 1);
  EXPECT_FALSE(receiver.give_kept(*message));
  sender.push();
  EXPECT_TRUE(sent->done);
  pull(nullptr);
  EXPECT_FALSE(receiver.is_coming());
  EXPECT_TRUE(receiver.give_kept(*message));
  EXPECT_EQ(room, large);
}

TEST_F(CclMessagePeer, Pull_ReceiveWaitsForAnIncompleteMessage_DoesNotTakeTheNextOne) {
  const std::string large(kSmall.fragments() * pair.ends[0].fragment_bytes(), 'l');
  send(large, 1);
  EXPECT_TRUE(pull(nullptr));
  std::string room(large.size(), '.');
  const Pointer message = receive(&room, 1);
  EXPECT_FALSE(receiver.give_kept(*message));
  send("next", 1);
  EXPECT_TRUE(pull(message));
  EXPECT_FALSE(message->done) << "the first one has come, and is kept";
  EXPECT_TRUE(receiver.give_kept(*message));
  EXPECT_EQ(room, large);
}

TEST_F(CclMessagePeer, Takes_GivenRankOrAnyRank_MatchesTheSource) {
  std::string room(1, '.');
  const Pointer message = receive(&room, 1);
  message->peer = 3;
  EXPECT_FALSE(message->takes(0, 1));
  EXPECT_TRUE(message->takes(3, 1));
  message->peer = kNoRank;
  EXPECT_TRUE(message->takes(0, 1));
}

TEST_F(CclMessagePeer, GiveKept_SeveralMessagesOfOneTag_GivesTheOldestFirst) {
  for (const char* const text : {"a", "b", "c"}) send(text, 1);
  while (pull(nullptr)) {
  }
  for (const char* const text : {"a", "b", "c"}) {
    std::string room(1, '.');
    const Pointer message = receive(&room, 1);
    ASSERT_TRUE(receiver.give_kept(*message));
    EXPECT_EQ(room, text);
  }
}

TEST_F(CclMessagePeer, End_MessagesUnderWay_AreEnded) {
  const std::string large(2 * kSmall.fragments() * pair.ends[0].fragment_bytes(), 'l');
  const Pointer sent = send(large, 1);
  std::string room(large.size(), '.');
  const Pointer message = receive(&room, 1);
  pull(message);
  EXPECT_TRUE(receiver.is_coming());
  std::vector<Message*> ended;
  sender.end([&](Message& one) { ended.push_back(&one); });
  receiver.end([&](Message& one) { ended.push_back(&one); });
  EXPECT_EQ(ended, (std::vector<Message*>{sent.get(), message.get()}));
  EXPECT_FALSE(receiver.is_coming() || sender.has_sends());
}

}  // namespace
}  // namespace nupa::ccl
