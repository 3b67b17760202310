// SPDX-License-Identifier: Apache-2.0
/// Connections to other hosts: probes, rejections and repetitions by packets.
#include <gtest/gtest.h>
#include <nupa/connection_manager.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <vector>

#include "../host/fixture.h"
#include "base/clock.h"
#include "cm/connections.h"
#include "cm/engine/probe.h"
#include "connections_fixture.h"
#include "core/process.h"
#include "transport/roce/port/port.h"

namespace nupa::core {
namespace {

/// The service thread looks at the processes of other hosts as if the time was `now`.
void look_at(Process& own, int64_t now) {
  on_service_thread(own, [&] { cm::Connections::of(own)->watch_peers(now); });
}

uint16_t port_of(const Process& own) { return roce::Port::port_of_slot(own.slot()); }

TEST(CoreConnectionsPackets, Probe_Question_IsAnsweredWithTheInstanceAndAnEchoIsNot) {
  const ChosenTransport packets("roce");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  const auto own = *Process::acquire();
  auto socket = roce::ManagementSocket::open(0);
  ASSERT_TRUE(socket);
  const auto ask = [&](bool is_echo, uint32_t port) {
    MadDatagram question;
    question.bytes = cm::write_probe({is_echo, port, 5});
    question.local = loopback();
    question.remote = {loopback(), port_of(*own)};
    socket->send(question);
  };
  ask(true, 111);
  ask(false, 4711);
  std::vector<cm::Probe> answers;
  while (answers.empty()) {
    pollfd one{socket->fd(), POLLIN, 0};
    ASSERT_EQ(1, ::poll(&one, 1, kSoonMs));
    socket->receive([&](const MadDatagram& datagram) {
      const auto probe = cm::read_probe(datagram.bytes);
      ASSERT_TRUE(probe);
      EXPECT_TRUE(datagram.of_nupa);
      answers.push_back(*probe);
    });
  }
  ASSERT_EQ(1u, answers.size());
  EXPECT_TRUE(answers[0].is_echo);
  EXPECT_EQ(4711u, answers[0].port) << "the port that was asked";
  EXPECT_EQ(own->node().self().instance(), answers[0].instance);
}

/// A NUPA process of another host, as this process sees it: packets come from a port of its own.
class FarProcess {
 public:
  explicit FarProcess(uint64_t guid) : guid_(guid), socket_(*roce::ManagementSocket::open(0)) {}
  /// A connection to the service of `party`, made by this process.
  void connect(Party& party, uint16_t port, uint64_t service, ConnectionId* id) {
    request(port, service);
    const Event asked = party.sink.next();
    ASSERT_EQ(EventKind::kRequest, asked.what);
    ASSERT_EQ(0, party.manager->accept(asked.id, {}));
    send(port, cm::write({cm::Attribute::kRtu, 1, kId, asked.id}, cm::Readiness{}));
    ASSERT_EQ(EventKind::kEstablished, party.sink.next().what);
    *id = asked.id;
  }
  /// The same to a process that accepts by itself.
  bool connect(uint16_t port, uint64_t service) {
    request(port, service);
    const auto reply = receive(cm::Attribute::kRep);
    if (reply) send(port, cm::write({cm::Attribute::kRtu, 1, kId, reply->local_id}, cm::Readiness{}));
    return reply.has_value();
  }
  void answer_disconnect(uint16_t port, const cm::Envelope& dreq) {
    send(port, cm::write({cm::Attribute::kDrep, dreq.transaction, kId, dreq.local_id}, cm::Readiness{}));
  }
  /// Waits for a message of that kind.
  std::optional<cm::Envelope> receive(cm::Attribute wanted) {
    std::optional<cm::Envelope> found;
    while (!found) {
      pollfd one{socket_.fd(), POLLIN, 0};
      if (::poll(&one, 1, kSoonMs) != 1) return std::nullopt;
      socket_.receive([&](const MadDatagram& datagram) {
        const auto envelope = cm::read_envelope(datagram.bytes);
        if (envelope && envelope->attribute == wanted) found = envelope;
      });
    }
    return found;
  }
  /// Waits until somebody asks whether it lives.
  bool asked_whether_it_lives() {
    bool asked = false;
    while (!asked) {
      pollfd one{socket_.fd(), POLLIN, 0};
      if (::poll(&one, 1, kSoonMs) != 1) return false;
      socket_.receive([&](const MadDatagram& datagram) {
        const auto probe = cm::read_probe(datagram.bytes);
        asked = asked || (probe && !probe->is_echo);
      });
    }
    return true;
  }

 private:
  static constexpr uint32_t kId = 5;
  void request(uint16_t port, uint64_t service) {
    ConnectionRequest request;
    request.service_id = service;
    request.ca_guid = guid_;
    request.path.local = request.path.remote = loopback();
    send(port, cm::write({cm::Attribute::kReq, 1, kId, 0}, request));
  }
  void send(uint16_t port, const cm::Mad& mad) {
    MadDatagram datagram;
    datagram.bytes = mad;
    datagram.local = loopback();
    datagram.remote = {loopback(), port};
    socket_.send(datagram);
  }
  const uint64_t guid_;
  roce::ManagementSocket socket_;
};

TEST(CoreConnectionsPackets, LastRemoteConnectionEnds_ProcessesOfLaterConnectionsAreWatched) {
  const ChosenTransport packets("roce");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  const auto own = *Process::acquire();
  const uint16_t port = port_of(*own);
  ASSERT_EQ(0, party.take(1, kPlain));
  ASSERT_EQ(0, party.manager->listen(1));
  FarProcess first(0x11), second(0x22);
  ConnectionId id = 0;
  ASSERT_NO_FATAL_FAILURE(first.connect(party, port, kPlain, &id));
  ASSERT_TRUE(first.asked_whether_it_lives());
  party.manager->release(id);
  // The pause between two questions ends, and no connection is left.
  ASSERT_NO_FATAL_FAILURE(look_at(*own, base::now_ns() + 2 * cm::PeerPulse::kPauseNs));
  ASSERT_NO_FATAL_FAILURE(second.connect(party, port, kPlain, &id));
  EXPECT_TRUE(second.asked_whether_it_lives());
  party.manager->release(id);
}

/// A process that listens and accepts a connection by packets. It exits when it gets a word, and sends its port and a
/// word once it is connected.
void accept_and_exit(Other& self) {
  auto* party = new Party;
  if (party->manager == nullptr || party->take(1, kPlain) != 0 || party->manager->listen(1) != 0) _exit(1);
  self.send_word(port_of(**Process::acquire()));
  const Event request = party->sink.next();
  if (request.what != EventKind::kRequest || party->manager->accept(request.id, {}) != 0) _exit(2);
  if (party->sink.next().what != EventKind::kEstablished) _exit(3);
  self.send_word(1);
  self.receive_word();
  exit(0);
}

TEST(CoreConnectionsPackets, ProcessExits_DreqIsRepeatedUntilItIsAnswered) {
  const ChosenTransport packets("roce");
  Other other(accept_and_exit);
  const auto port = static_cast<uint16_t>(other.receive_word());
  FarProcess far(0x44);
  ASSERT_TRUE(far.connect(port, kPlain));
  ASSERT_EQ(1, other.receive_word());
  other.send_word(1);
  // More than other exit actions have time for.
  constexpr int kLost = 3;
  auto dreq = far.receive(cm::Attribute::kDreq);
  ASSERT_TRUE(dreq);
  for (int lost = 0; lost < kLost; ++lost) {
    const uint64_t transaction = dreq->transaction;
    dreq = far.receive(cm::Attribute::kDreq);
    ASSERT_TRUE(dreq) << lost;
    EXPECT_EQ(transaction, dreq->transaction);
  }
  far.answer_disconnect(port, *dreq);
  EXPECT_EQ(0, other.wait());
}

TEST(CoreConnectionsPackets, ProcessExits_PeerDoesNotAnswer_ItEndsAllTheSame) {
  const ChosenTransport packets("roce");
  Other other(accept_and_exit);
  const auto port = static_cast<uint16_t>(other.receive_word());
  FarProcess far(0x45);
  ASSERT_TRUE(far.connect(port, kPlain));
  ASSERT_EQ(1, other.receive_word());
  other.send_word(1);
  EXPECT_EQ(0, other.wait());
  EXPECT_TRUE(far.receive(cm::Attribute::kDreq));
}

TEST(CoreConnectionsPackets, ProcessStoppedForLong_KeepsItsConnections) {
  const ChosenTransport packets("roce");
  Party party;
  ASSERT_NE(nullptr, party.manager);
  const auto own = *Process::acquire();
  ASSERT_EQ(0, party.take(1, kPlain));
  ASSERT_EQ(0, party.manager->listen(1));
  FarProcess other(0x33);
  ConnectionId id = 0;
  ASSERT_NO_FATAL_FAILURE(other.connect(party, port_of(*own), kPlain, &id));
  ASSERT_TRUE(other.asked_whether_it_lives());
  // The time has gone on, and nobody was asked in it.
  ASSERT_NO_FATAL_FAILURE(look_at(*own, base::now_ns() + 100 * cm::PeerPulse::kPauseNs));
  EXPECT_TRUE(party.sink.is_empty());
  EXPECT_TRUE(other.asked_whether_it_lives());
  party.manager->release(id);
}

/// The process with the port where standard peers look, and what they send there. Another process of the host is a name
/// that takes what is passed on.
class CoreConnectionsRelay : public ::testing::Test {
 protected:
  static constexpr uint64_t kService = kIpTcp + 7200;
  static constexpr uint64_t kGuid = 0x1122334455667788;

  void SetUp() override {
    ASSERT_NE(nullptr, party.manager);
    own = *Process::acquire();
    auto opened = roce::ManagementSocket::open(0, false);
    ASSERT_TRUE(opened);
    socket.emplace(std::move(*opened));
    auto taken = cm::MadName::take(cm::MadName::of_service(kService, cm::MadName::Family::kIpv4));
    ASSERT_TRUE(taken) << taken.error().what();
    other.emplace(std::move(*taken));
  }
  void send(const cm::Mad& mad) {
    MadDatagram datagram;
    datagram.bytes = mad;
    datagram.local = loopback();
    datagram.remote = {loopback(), port_of(*own)};
    socket->send(datagram);
  }
  /// `says_address`: with the header of IP, which says for which address it is.
  void send_request(uint32_t id, uint64_t guid = kGuid, bool says_address = true) {
    ConnectionRequest request;
    request.service_id = kService;
    request.ca_guid = guid;
    request.path.local = request.path.remote = loopback();
    request.private_data.bytes[1] = std::byte{0x40};
    for (size_t i = 0; i < 4; ++i) request.private_data.bytes[32 + i] = static_cast<std::byte>(loopback().raw[12 + i]);
    if (says_address) request.private_data.length = 36;
    send(cm::write({cm::Attribute::kReq, 9, id, 0}, request));
  }
  void send_rejection(uint32_t id, RejectReason reason = RejectReason::kTimeout, uint64_t guid = kGuid) {
    cm::Rejection rejection;
    rejection.answered = cm::Answered::kOther;
    rejection.reason = static_cast<uint16_t>(reason);
    rejection.ca_guid = guid;
    send(cm::write({cm::Attribute::kRej, 9, id, 0}, rejection));
  }
  /// What the other process gets next: attribute and sender's id. What comes later has come after it.
  std::optional<std::pair<cm::Attribute, uint32_t>> passed() {
    pollfd one{other->fd(), POLLIN, 0};
    if (::poll(&one, 1, kSoonMs) != 1) return std::nullopt;
    const auto relayed = other->receive();
    const auto envelope = relayed ? cm::read_envelope(relayed->mad) : std::nullopt;
    if (!envelope) return std::nullopt;
    return std::pair{envelope->attribute, envelope->local_id};
  }
  using Passed = std::pair<cm::Attribute, uint32_t>;

  const ChosenTransport packets{"roce"};
  Party party;
  std::shared_ptr<Process> own;
  std::optional<roce::ManagementSocket> socket;
  std::optional<cm::MadName> other;
};

TEST_F(CoreConnectionsRelay, Rejection_OfASenderThatGaveUp_IsPassedWhereItsRequestWas) {
  send_request(5);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kReq, 5}));
  send_rejection(5);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kRej, 5}));
}

TEST_F(CoreConnectionsRelay, Request_WithoutAnAddress_IsPassedToTheListenerOnAllAddresses) {
  send_request(5, kGuid, false);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kReq, 5}));
}

TEST_F(CoreConnectionsRelay, Rejection_OfAnotherSender_IsNotPassed) {
  send_request(5);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kReq, 5}));
  send_rejection(6);
  send_rejection(5, RejectReason::kTimeout, kGuid + 1);
  send_rejection(5, RejectReason::kTimeout, kGuid - 1);
  send_rejection(5, RejectReason::kConsumer);
  send_request(7);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kReq, 7})) << "none of them";
}

TEST_F(CoreConnectionsRelay, Request_Repeated_TakesOneEntryOfTheTable) {
  send_request(1);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kReq, 1}));
  constexpr uint32_t kMost = 256;
  // With those it would be forgotten, were each of them another one.
  for (uint32_t i = 0; i < kMost; ++i) {
    send_request(2);
    ASSERT_EQ(passed(), (Passed{cm::Attribute::kReq, 2}));
  }
  send_rejection(1);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kRej, 1}));
  for (uint32_t i = 0; i < kMost; ++i) {
    send_request(3 + i);
    ASSERT_EQ(passed(), (Passed{cm::Attribute::kReq, 3 + i}));
  }
  send_rejection(1);
  send_rejection(2 + kMost);
  EXPECT_EQ(passed(), (Passed{cm::Attribute::kRej, 2 + kMost})) << "the first one is forgotten";
}

TEST_F(CoreConnectionsRelay, Request_OfAStandardPeer_IsAnsweredAtTheStandardPort) {  // annex A17
  send_request(5);
  pollfd one{other->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&one, 1, kSoonMs), 1);
  const auto relayed = other->receive();
  ASSERT_TRUE(relayed);
  EXPECT_FALSE(relayed->way.of_nupa);
  EXPECT_EQ(roce::kUdpPort, relayed->way.port);
}

}  // namespace
}  // namespace nupa::core
