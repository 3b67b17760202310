// SPDX-License-Identifier: Apache-2.0
/// Tests of datagrams between ranks: which of them reach a communicator, and that malformed ones are dropped.
#include <gtest/gtest.h>
#include <nupa/device.h>

#include <cstring>
#include <memory>
#include <vector>

#include "ccl/connect/endpoint.h"
#include "mail_fixture.h"

namespace nupa::ccl {
namespace {

using namespace mail_test;

/// A program of this host that sends datagrams to a mailbox.
class RawSender {
 public:
  RawSender() {
    device_ = std::move(*open_device(list_devices().front().name));
    pd_ = std::move(*device_->alloc_pd());
    cq_ = std::move(*device_->create_cq({.entries = 64}));
    QpOptions options{.type = QpType::kUd, .send_cq = cq_.get(), .recv_cq = cq_.get()};
    options.cap = {.max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 128};
    qp_ = std::move(*device_->create_qp(pd_.get(), options));
    using namespace qp_attr;
    QpAttr attr;
    attr.qkey = kQkey;
    constexpr std::pair<QpState, uint32_t> kWay[] = {{QpState::kInit, kState | kPkeyIndex | kPort | qp_attr::kQkey},
                                                     {QpState::kRtr, kState},
                                                     {QpState::kRts, kState | kSqPsn}};
    for (const auto& [state, mask] : kWay) {
      attr.state = state;
      EXPECT_EQ(qp_->modify(attr, mask), 0);
    }
  }
  /// Some bytes to the mailbox of that card.
  void send(const Endpoint& to, const void* data, size_t bytes) {
    AddressVector vector{.dgid = to.peer_info().gid};
    vector.sgid_index = to.gid_index();
    vector.hop_limit = 64;
    vector.is_global = true;
    const auto way = device_->create_ah(*pd_, vector);
    ASSERT_TRUE(way);
    const Sge sge{reinterpret_cast<uint64_t>(data), static_cast<uint32_t>(bytes), 0};
    SendWr wr{.sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend};
    wr.flags = send_flag::kInline | send_flag::kSignaled;
    wr.remote_qpn = to.peer_info().mailbox;
    wr.remote_qkey = kQkey;
    wr.ah = way->get();
    ASSERT_EQ(qp_->post_send(wr), 0);
    WorkCompletion completion;
    ASSERT_TRUE(eventually([&] { return cq_->poll(&completion, 1) == 1; }));
    ASSERT_EQ(completion.status, WcStatus::kSuccess);
  }

 private:
  static constexpr uint32_t kQkey = 0x4e55434c;  // that of all mailboxes
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProtectionDomain> pd_;
  std::unique_ptr<CompletionQueue> cq_;
  std::unique_ptr<QueuePair> qp_;
};

Mail mail_to(uint32_t rank, uint64_t mark) {
  Mail mail;
  mail.communicator = kId;
  mail.to = rank;
  mail.dead = mark;
  return mail;
}

TEST(CclEndpoint, Mail_MalformedOrForAnotherReceiver_IsDropped) {
  const auto endpoint = endpoint_here();
  ASSERT_NE(endpoint, nullptr);
  Inbox first;
  Inbox other_rank;
  ASSERT_EQ(endpoint->enter(kId, 1, &first), 0);
  ASSERT_EQ(endpoint->enter(kId, 2, &other_rank), 0);
  EXPECT_EQ(endpoint->enter(kId, 1, &other_rank), EEXIST);
  RawSender sender;
  std::byte longer[sizeof(Mail) + 8] = {};
  const Mail right = mail_to(1, 1);
  std::memcpy(longer, &right, sizeof right);
  sender.send(*endpoint, longer, sizeof longer);
  sender.send(*endpoint, &right, sizeof right - 1);
  Mail wrong = right;
  wrong.magic ^= 1;
  sender.send(*endpoint, &wrong, sizeof wrong);
  wrong = right;
  ++wrong.version;
  sender.send(*endpoint, &wrong, sizeof wrong);
  wrong = right;
  wrong.communicator[1] ^= 1;
  sender.send(*endpoint, &wrong, sizeof wrong);
  wrong = right;
  wrong.to = 3;
  sender.send(*endpoint, &wrong, sizeof wrong);
  const Mail to_other = mail_to(2, 5);
  sender.send(*endpoint, &to_other, sizeof to_other);
  const Mail last = mail_to(1, 7);
  sender.send(*endpoint, &last, sizeof last);
  EXPECT_TRUE(eventually([&] { return !first.mails().empty() && !other_rank.mails().empty(); }));
  endpoint->leave(kId, 1);
  endpoint->leave(kId, 2);
  ASSERT_EQ(first.mails().size(), 1u);
  EXPECT_EQ(first.mails()[0].dead, 7u);
  ASSERT_EQ(other_rank.mails().size(), 1u);
  EXPECT_EQ(other_rank.mails()[0].dead, 5u);
}

TEST(CclEndpoint, Mail_MoreMessagesThanReceives_AllArrive) {
  // More than there are receives: each is posted again.
  constexpr uint64_t kMails = 600;
  const auto endpoint = endpoint_here();
  ASSERT_NE(endpoint, nullptr);
  Inbox inbox;
  ASSERT_EQ(endpoint->enter(kId, 1, &inbox), 0);
  for (uint64_t i = 0; i < kMails; ++i) {
    endpoint->send(endpoint->peer_info(), mail_to(1, i));
    ASSERT_TRUE(eventually([&] { return inbox.mails().size() == i + 1; })) << i;
  }
  endpoint->leave(kId, 1);
  EXPECT_EQ(inbox.mails().back().dead, kMails - 1);
}

TEST(CclEndpoint, Mail_DatagramsOfAWrongLength_LeaveTheReceivesPosted) {
  constexpr uint64_t kPairs = 300;  // more than there are receives
  const auto endpoint = endpoint_here();
  ASSERT_NE(endpoint, nullptr);
  Inbox inbox;
  ASSERT_EQ(endpoint->enter(kId, 1, &inbox), 0);
  RawSender sender;
  for (uint64_t i = 0; i < kPairs; ++i) {
    const Mail mail = mail_to(1, i);
    sender.send(*endpoint, &mail, sizeof mail - 1);
    endpoint->send(endpoint->peer_info(), mail);
    ASSERT_TRUE(eventually([&] { return inbox.mails().size() == i + 1; })) << i;
  }
  endpoint->leave(kId, 1);
}

}  // namespace
}  // namespace nupa::ccl
