// SPDX-License-Identifier: Apache-2.0
// Connections between two nodes: the proof of the key, the order of what is sent, and what ends them. Both ends are in
// this process; one of them may be a queue pair that knows no rules.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>

#include "session_fixture.h"

namespace nupa::netdev {
namespace {

using namespace session_test;

constexpr uint64_t kService = uint64_t{2} << 56 | 0x77;
constexpr uint8_t kSaysPeerInfo = 1, kSaysReady = 2, kSaysRefusal = 3;

class NetdevSession : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_device("nupa0");
    ASSERT_TRUE(opened) << opened.error().what();
    device = std::move(*opened);
    pd = std::move(*device->alloc_pd());
    auto managed = ConnectionManager::open(events);
    ASSERT_TRUE(managed) << managed.error().what();
    manager = std::move(*managed);
    ListenerAddress listener;
    listener.service_id = kService;
    ASSERT_EQ(0, manager->bind(kListener, listener));
    ASSERT_EQ(0, manager->listen(kListener));
    own = device->query_gid(1, 1)->gid;
    key = *new_key();
    asking = make("asks", "10.77.0.1/24");
    answering = make("answers", "10.77.0.2/24");
  }
  void TearDown() override {
    asking.reset();
    answering.reset();
    qp.reset();
    region.reset();
    cq.reset();
    manager.reset();
    pd.reset();
    device.reset();
  }
  std::unique_ptr<Household> make(const std::string& name, const char* address, size_t packet_loops = 1) {
    return make_household(*device, *pd, *manager, key, name, address, packet_loops);
  }
  ConnectionRoute route() const {
    ConnectionRoute found = *manager->find_address(own);
    found.path.remote = own;
    return found;
  }
  /// The asking node asks; gives the request as the other end has it.
  Happened ask() {
    auto session = Session::ask(*asking->world, kAsks, kService, route());
    EXPECT_TRUE(session);
    if (session) asking->session = std::move(*session);
    return events.next(Happened::kRequest);
  }
  /// Both ends until this holds, within the limit.
  template <class Until>
  bool go(Until&& until) {
    const auto end = std::chrono::steady_clock::now() + kSessionLimit;
    while (!until()) {
      if (std::chrono::steady_clock::now() > end) return false;
      if (!asking->turn() && !answering->turn()) usleep(100);  // sleep: the pause between two looks
    }
    return true;
  }
  bool connect() {
    const Happened asked = ask();
    auto session = Session::answer(*answering->world, kAnswers, asked.id, asked.request);
    if (!session) return false;
    answering->session = std::move(*session);
    asking->session->on_reply(events.next(Happened::kReply).reply);
    return true;
  }
  bool is_over(const Household& end) const { return end.session->state() == Session::State::kOver; }

  /// The answering node has done something about a message.
  bool has_taken_it() const {
    return is_over(*answering) || answering->session->peer_info() != nullptr ||
           answering->session->state() == Session::State::kUp;
  }

  // A queue pair in the place of a node that asks. It has the key, but not the manners.
  HandshakeData handshake_data(const PeerAuthentication& by, const Nonce& nonce, bool asks) const {
    HandshakeData made;
    made.qp_num = qp->number();
    made.nonce = nonce;
    made.mac = asks ? by.asks(made.covered()) : by.answers(made.covered());
    return made;
  }
  void make_qp() {
    qp.reset();
    cq = std::move(*device->create_cq({.entries = 64}));
    region = std::move(*device->alloc_mr(*pd, 5 * kRoom, access::kLocalWrite));
    qp = std::move(*device->create_qp(
        pd.get(), {.send_cq = cq.get(),
                   .recv_cq = cq.get(),
                   .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1}}));
  }
  /// Connected to the answering node, which has taken its proof.
  bool be_let_in() {
    make_qp();
    const Nonce nonce = *new_nonce();
    authentication = std::make_unique<PeerAuthentication>(key, "lab");
    authentication->set_asking(nonce);
    const HandshakeData handshake = handshake_data(*authentication, nonce, true);
    ConnectionRequest request;
    request.service_id = kService;
    request.path = route().path;
    request.qp_num = qp->number();
    request.private_data.set(&handshake, sizeof handshake);
    ConnectionId id = 0;
    if (manager->connect(request, route(), kAsks, &id) != 0) return false;
    const Happened asked = events.next(Happened::kRequest);
    auto session = Session::answer(*answering->world, kAnswers, asked.id, asked.request);
    if (!session) return false;
    answering->session = std::move(*session);
    const Happened replied = events.next(Happened::kReply);
    HandshakeData answer;
    std::memcpy(&answer, replied.reply.private_data.bytes.data(), sizeof answer);
    authentication->set_answering(answer.nonce);
    using namespace qp_attr;
    QpAttr attr;
    attr.state = QpState::kInit;
    int error = qp->modify(attr, kState | kPkeyIndex | kPort | kAccessFlags);
    for (size_t i = 0; i < 4; ++i) {
      const Sge room{reinterpret_cast<uint64_t>(region->addr()) + i * kRoom, kRoom, region->lkey()};
      error |= qp->post_recv({.wr_id = 0, .sg_list = &room, .num_sge = 1});
    }
    attr.state = QpState::kRtr;
    attr.av.is_global = true;
    attr.av.dgid = own;
    attr.av.sgid_index = static_cast<uint8_t>(route().gid_index);
    attr.av.hop_limit = 64;
    attr.path_mtu = Mtu::k1024;
    attr.dest_qp_num = replied.reply.qp_num;
    error |= qp->modify(attr, kState | kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer);
    attr.state = QpState::kRts;
    attr.sq_psn = replied.reply.starting_psn;
    attr.timeout = 16;
    attr.retry_cnt = attr.rnr_retry = 7;
    error |= qp->modify(attr, kState | kSqPsn | qp_attr::kTimeout | kRetryCnt | kRnrRetry | kMaxQpRdAtomic);
    return error == 0 && manager->establish(id) == 0;
  }
  void send(const std::string& bytes) {
    std::byte* const place = static_cast<std::byte*>(region->addr()) + 4 * kRoom;
    std::memcpy(place, bytes.data(), bytes.size());
    const Sge piece{reinterpret_cast<uint64_t>(place), static_cast<uint32_t>(bytes.size()), region->lkey()};
    ASSERT_EQ(
        0, qp->post_send(
               {.wr_id = 1, .sg_list = &piece, .num_sge = 1, .opcode = Opcode::kSend, .flags = send_flag::kSignaled}));
    const auto end = std::chrono::steady_clock::now() + kSessionLimit;
    for (WorkCompletion done; std::chrono::steady_clock::now() < end;)
      if (cq->poll(&done, 1) == 1 && done.wr_id == 1) break;
  }
  std::string message(uint8_t kind, const std::string& text, uint32_t count, bool from_asking = true) const {
    const std::string handshake = static_cast<char>(kind) + text;
    const Mac mac = authentication->of_message(
        from_asking, count, {reinterpret_cast<const std::byte*>(handshake.data()), handshake.size()});
    return handshake + std::string(reinterpret_cast<const char*>(mac.data()), mac.size());
  }
  std::string peer_info(size_t channels = 1) const {
    PeerInfo made = asking->world->self;
    made.channels.assign(channels, {1, 2, 3, 4});
    return made.encode();
  }
  /// How the answering node ends what a message has begun.
  std::string end_after(const std::string& bytes) {
    if (!be_let_in()) return "not let in";
    send(bytes);
    go([&] { return has_taken_it(); });
    std::string why = is_over(*answering) ? answering->session->why() : "it has a card";
    answering->session.reset();
    return why;
  }

  static constexpr uint32_t kRoom = 4096;
  SessionEvents events;
  std::unique_ptr<Device> device;
  std::unique_ptr<ProtectionDomain> pd;
  std::shared_ptr<ConnectionManager> manager;
  Gid own;
  Key key{};
  std::unique_ptr<Household> asking, answering;
  std::unique_ptr<CompletionQueue> cq;
  std::unique_ptr<MemoryRegion> region;
  std::unique_ptr<QueuePair> qp;
  std::unique_ptr<PeerAuthentication> authentication;
};

TEST_F(NetdevSession, BothWithTheKey_ComeUpInTurns) {
  answering->world->self.takes_datagrams = false;
  ASSERT_TRUE(connect());
  EXPECT_TRUE(asking->session->asks());
  EXPECT_FALSE(answering->session->asks());
  ASSERT_TRUE(go([&] { return answering->session->has_new_peer_info(); }));
  EXPECT_EQ("asks", answering->session->peer_info()->node);
  EXPECT_EQ(9000u, answering->session->peer_info()->mtu);
  EXPECT_TRUE(answering->session->peer_info()->takes_datagrams);
  // The one that is asked shows its card once it agrees, not before.
  while (asking->turn()) {
  }
  EXPECT_EQ(nullptr, asking->session->peer_info());
  EXPECT_EQ(Session::State::kProving, asking->session->state());
  answering->session->accept();
  EXPECT_FALSE(answering->session->has_new_peer_info());
  EXPECT_EQ(Session::State::kAgreed, answering->session->state());
  ASSERT_TRUE(go([&] { return asking->session->has_new_peer_info(); }));
  EXPECT_EQ("answers", asking->session->peer_info()->node);
  EXPECT_EQ(Session::State::kAgreed, answering->session->state());
  asking->session->accept();
  EXPECT_EQ(Session::State::kUp, asking->session->state());
  ASSERT_TRUE(go([&] { return answering->session->state() == Session::State::kUp; }));
  EXPECT_FALSE(asking->session->links().front().takes_datagrams);
  const Link& link = answering->session->links().front();
  EXPECT_EQ(9000u, link.mtu);
  EXPECT_TRUE(link.takes_datagrams);
  EXPECT_FALSE(link.carries);
  ASSERT_EQ(1u, link.addresses.size());
  EXPECT_EQ(*address_from("10.77.0.1"), link.addresses[0]);
  answering->session->activate();
  EXPECT_TRUE(link.carries);
  EXPECT_EQ(0, answering->session->channel_error());
}

TEST_F(NetdevSession, NodesWithDifferentQueues_HaveAsManyChannelsAsTheMore) {
  asking.reset();
  asking = make("asks", "10.77.0.1/24", 3);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(go([&] { return answering->session->has_new_peer_info(); }));
  answering->session->accept();
  ASSERT_TRUE(go([&] { return asking->session->has_new_peer_info(); }));
  EXPECT_EQ(3u, asking->session->peer_info()->channels.size());
  asking->session->accept();
  ASSERT_TRUE(go([&] { return answering->session->state() == Session::State::kUp; }));
  ASSERT_EQ(3u, asking->session->links().size());
  for (const Link& link : asking->session->links()) EXPECT_EQ(1u, link.channels.size());
  ASSERT_EQ(1u, answering->session->links().size());
  EXPECT_EQ(3u, answering->session->links()[0].channels.size());
}

TEST_F(NetdevSession, Answer_AnotherKeyOrNetwork_IsRejectedAsIfNobodyListened) {
  for (const bool other_key : {true, false}) {
    answering->world->key = other_key ? *new_key() : key;
    answering->world->network = other_key ? "lab" : "lob";
    const Happened asked = ask();
    const auto session = Session::answer(*answering->world, kAnswers, asked.id, asked.request);
    ASSERT_FALSE(session);
    EXPECT_EQ(EACCES, session.error().code());
    const Happened rejected = events.next(Happened::kRejected);
    EXPECT_EQ(static_cast<uint16_t>(RejectReason::kInvalidServiceId), rejected.reason);
    EXPECT_EQ(PrivateData<148>().bytes, rejected.data.bytes);  // not a word
    manager->release(asked.id);
    asking->session.reset();
  }
}

TEST_F(NetdevSession, Answer_GreetingWithAnythingWrong_IsNotLetIn) {
  make_qp();
  const Nonce nonce = *new_nonce();
  PeerAuthentication with_key(key, "lab");
  with_key.set_asking(nonce);
  // 0: proved, and no connection is there to accept.
  const auto answer_to = [&](const HandshakeData& handshake, uint32_t length = sizeof(HandshakeData)) {
    ConnectionRequest request;
    request.path = route().path;
    request.qp_num = qp->number();
    request.private_data.set(&handshake, sizeof handshake);
    request.private_data.length = length;
    const auto session = Session::answer(*answering->world, kAnswers, 0, request);
    return session ? 0 : session.error().code() == EINVAL ? 0 : session.error().code();
  };
  const auto with = [&](auto&& change) {
    HandshakeData handshake = handshake_data(with_key, nonce, true);
    change(handshake);
    handshake.mac = with_key.asks(handshake.covered());
    return answer_to(handshake);
  };
  EXPECT_EQ(0, with([](HandshakeData&) {}));
  EXPECT_EQ(0, with([](HandshakeData& handshake) { handshake.queues = 16; }));
  EXPECT_EQ(EACCES, with([](HandshakeData& handshake) { handshake.queues = 0; }));
  EXPECT_EQ(EACCES, with([](HandshakeData& handshake) { handshake.queues = 17; }));
  EXPECT_EQ(EACCES, with([](HandshakeData& handshake) { handshake.magic ^= 1; }));
  EXPECT_EQ(EPROTO, with([](HandshakeData& handshake) { handshake.version = 2; }));  // who has the key is no stranger
  EXPECT_EQ(EACCES,
            with([](HandshakeData& handshake) { ++handshake.qp_num; }));  // of another queue pair than the request's
  const HandshakeData good = handshake_data(with_key, nonce, true);
  EXPECT_EQ(EACCES, answer_to(good, sizeof good - 1));
  for (size_t i = 0; i < sizeof good; ++i) {
    HandshakeData changed = good;
    reinterpret_cast<uint8_t*>(&changed)[i] ^= 0x10;
    EXPECT_EQ(EACCES, answer_to(changed)) << i;
  }
  HandshakeData of_the_other_kind = good;
  of_the_other_kind.mac = with_key.answers(good.covered());
  EXPECT_EQ(EACCES, answer_to(of_the_other_kind));
}

TEST_F(NetdevSession, OnReply_GreetingWithAnythingWrong_EndsIt) {
  make_qp();
  const Nonce nonce = *new_nonce();
  // What a reply leads to: an end for want of the key, or for want of a connection.
  const auto is_accepted =
      [&](const std::function<void(HandshakeData&, const HandshakeData&, PeerAuthentication&)>& change) {
        const Happened asked = ask();
        HandshakeData question;
        std::memcpy(&question, asked.request.private_data.bytes.data(), sizeof question);
        PeerAuthentication with_key(key, "lab");
        with_key.set_asking(question.nonce);
        with_key.set_answering(nonce);
        HandshakeData handshake = handshake_data(with_key, nonce, false);
        change(handshake, question, with_key);
        ConnectionReply reply;
        reply.qp_num = qp->number();
        reply.private_data.set(&handshake, sizeof handshake);
        asking->session->on_reply(reply);
        EXPECT_TRUE(is_over(*asking));
        const std::string why = asking->session->why();
        manager->release(asked.id);
        asking->session.reset();
        EXPECT_TRUE(why == "the peer does not have the network's key" || why == "cannot connect a queue pair" ||
                    why == "the peer has protocol version 2, this node version 1")
            << why;
        return why == "cannot connect a queue pair";
      };
  EXPECT_TRUE(is_accepted([](HandshakeData&, const HandshakeData&, PeerAuthentication&) {}));
  EXPECT_FALSE(
      is_accepted([](HandshakeData& handshake, const HandshakeData&, PeerAuthentication&) { handshake.mac[31] ^= 1; }));
  EXPECT_FALSE(
      is_accepted([](HandshakeData& handshake, const HandshakeData&, PeerAuthentication&) { handshake.mac[0] ^= 1; }));
  EXPECT_FALSE(is_accepted(
      [](HandshakeData& handshake, const HandshakeData&, PeerAuthentication&) { handshake.nonce[0] ^= 1; }));
  // Its own words come back.
  EXPECT_FALSE(is_accepted([](HandshakeData& handshake, const HandshakeData& question, PeerAuthentication&) {
    handshake.nonce = question.nonce;
    handshake.mac = question.mac;
  }));
  EXPECT_FALSE(is_accepted([](HandshakeData& handshake, const HandshakeData&, PeerAuthentication& made) {
    handshake.mac = made.asks(handshake.covered());
  }));
  // A proof of another connection: of other words of this end.
  EXPECT_FALSE(is_accepted([](HandshakeData& handshake, const HandshakeData&, PeerAuthentication& made) {
    made.set_asking({});
    handshake.mac = made.answers(handshake.covered());
  }));
  for (int field = 0; field < 4; ++field)
    EXPECT_FALSE(is_accepted([&](HandshakeData& handshake, const HandshakeData&, PeerAuthentication& made) {
      if (field == 0) handshake.version = 2;
      if (field == 1) handshake.queues = 0;
      if (field == 2) handshake.queues = 17;
      if (field == 3) ++handshake.qp_num;
      handshake.mac = made.answers(handshake.covered());
    })) << field;
}

TEST_F(NetdevSession, Message_WithoutItsMac_EndsIt) {
  const std::string no_key = "the peer does not have the network's key";
  const auto changed = [&](size_t from_end) {
    if (!be_let_in()) return std::string("not let in");
    std::string bytes = message(kSaysPeerInfo, peer_info(), 0);
    bytes[bytes.size() - 1 - from_end] ^= 1;
    send(bytes);
    go([&] { return has_taken_it(); });
    const std::string why = answering->session->why();
    answering->session.reset();
    return why;
  };
  for (const size_t at : {0u, 31u, 32u, 60u}) EXPECT_EQ(no_key, changed(at)) << at;
  EXPECT_EQ("the peer sent a message that is too short", end_after(std::string(32, 'x')));
  EXPECT_EQ(no_key, end_after(std::string(33, 'x')));
}

TEST_F(NetdevSession, Message_OfAnotherPlaceOrEnd_EndsIt) {
  const std::string no_key = "the peer does not have the network's key";
  const auto after = [&](uint32_t count, bool from_asking) {
    if (!be_let_in()) return std::string("not let in");
    send(message(kSaysPeerInfo, peer_info(), count, from_asking));
    go([&] { return has_taken_it(); });
    const std::string why = is_over(*answering) ? answering->session->why() : "";
    answering->session.reset();
    return why;
  };
  EXPECT_EQ("", after(0, true));
  EXPECT_EQ(no_key, after(1, true));
  EXPECT_EQ(no_key, after(0, false));
  // The same once more.
  ASSERT_TRUE(be_let_in());
  const std::string bytes = message(kSaysPeerInfo, peer_info(), 0);
  send(bytes);
  ASSERT_TRUE(go([&] { return answering->session->has_new_peer_info(); }));
  send(bytes);
  ASSERT_TRUE(go([&] { return is_over(*answering); }));
  EXPECT_EQ(no_key, answering->session->why());
}

TEST_F(NetdevSession, Message_ThatComesOutOfTurn_EndsIt) {
  const auto after = [&](uint8_t kind, const std::string& text) {
    if (!be_let_in()) return std::string("not let in");
    send(message(kind, text, 0));
    go([&] { return has_taken_it(); });
    const std::string why = is_over(*answering) ? answering->session->why() : "";
    answering->session.reset();
    return why;
  };
  EXPECT_EQ("", after(kSaysPeerInfo, peer_info()));
  EXPECT_EQ("the peer sent READY too early", after(kSaysReady, ""));
  EXPECT_EQ("the peer sent an unexpected message", after(0, ""));
  EXPECT_EQ("the peer sent an unexpected message", after(4, ""));
  EXPECT_EQ("refused: no room", after(kSaysRefusal, "no room"));
  EXPECT_EQ("the peer sent invalid peer info", after(kSaysPeerInfo, "{}"));
  EXPECT_EQ("the peer sent invalid peer info", after(kSaysPeerInfo, peer_info(2)));  // a channel that was not agreed on
  // A second card, and a second end of the handshake_data.
  ASSERT_TRUE(be_let_in());
  send(message(kSaysPeerInfo, peer_info(), 0));
  ASSERT_TRUE(go([&] { return answering->session->has_new_peer_info(); }));
  EXPECT_FALSE(answering->session->was_refused());
  send(message(kSaysPeerInfo, peer_info(), 1));
  ASSERT_TRUE(go([&] { return is_over(*answering); }));
  EXPECT_EQ("the peer sent its peer info twice", answering->session->why());
}

TEST_F(NetdevSession, PeerInfo_WithFewerChannelsThanWereAgreed_EndsIt) {
  answering.reset();
  answering = make("answers", "10.77.0.2/24", 2);  // two channels: as many as the node with more queues has
  ASSERT_TRUE(be_let_in());
  send(message(kSaysPeerInfo, peer_info(1), 0));
  ASSERT_TRUE(go([&] { return has_taken_it(); }));
  EXPECT_TRUE(is_over(*answering));
  EXPECT_EQ("the peer sent invalid peer info", answering->session->why());
}

TEST_F(NetdevSession, Ready_BeforeThisEndAgrees_EndsIt) {
  ASSERT_TRUE(be_let_in());
  send(message(kSaysPeerInfo, peer_info(), 0));
  ASSERT_TRUE(go([&] { return answering->session->has_new_peer_info(); }));
  send(message(kSaysReady, "", 1));
  ASSERT_TRUE(go([&] { return is_over(*answering); }));
  EXPECT_EQ("the peer sent READY too early", answering->session->why());
  EXPECT_TRUE(answering->session->links().empty());
}

TEST_F(NetdevSession, Refuse_TellsTheOtherEndWhy) {
  ASSERT_TRUE(connect());
  ASSERT_TRUE(go([&] { return answering->session->has_new_peer_info(); }));
  answering->session->reject("the name is taken");
  EXPECT_FALSE(answering->session->has_new_peer_info());
  EXPECT_NE(Session::State::kUp, answering->session->state());
  ASSERT_TRUE(go([&] { return is_over(*asking); }));
  EXPECT_TRUE(asking->session->was_refused());
  EXPECT_EQ("refused: the name is taken", asking->session->why());
  EXPECT_FALSE(answering->session->was_refused());
}

TEST_F(NetdevSession, NodeOfAnotherVersion_LearnsThatTheKeyIsNotTheReason) {
  const Happened asked = ask();
  HandshakeData handshake;
  std::memcpy(&handshake, asked.request.private_data.bytes.data(), sizeof handshake);
  handshake.version = 2;
  PeerAuthentication with_key(key, "lab");
  with_key.set_asking(handshake.nonce);
  handshake.mac = with_key.asks(handshake.covered());
  ConnectionRequest request = asked.request;
  request.private_data.set(&handshake, sizeof handshake);
  EXPECT_FALSE(Session::answer(*answering->world, kAnswers, asked.id, request));
  EXPECT_EQ(static_cast<uint16_t>(RejectReason::kConsumer), events.next(Happened::kRejected).reason);
  manager->release(asked.id);
}

TEST_F(NetdevSession, End_AfterARefusal_KeepsTheReasonOfTheRefusal) {
  ASSERT_TRUE(connect());
  ASSERT_TRUE(go([&] { return answering->session->has_new_peer_info(); }));
  answering->session->reject("the name is taken");
  answering->session->end("the peer disconnected");
  EXPECT_EQ("refused: the name is taken", answering->session->why());
}

TEST_F(NetdevSession, Answerer_BeforeItHasThePeersInfo_SendsNoneOfItsOwn) {
  ASSERT_TRUE(be_let_in());
  send(message(kSaysPeerInfo, peer_info(), 0));
  ASSERT_TRUE(go([&] { return answering->session->has_new_peer_info(); }));
  answering->session->reject("no");
  WorkCompletion done{};
  const auto end = std::chrono::steady_clock::now() + kSessionLimit;
  while (cq->poll(&done, 1) != 1 && std::chrono::steady_clock::now() < end) usleep(100);
  ASSERT_EQ(WcOpcode::kRecv, done.opcode);
  const auto* const first = static_cast<const std::byte*>(region->addr());
  EXPECT_EQ(std::byte{kSaysRefusal}, first[0]);
  ASSERT_EQ(3 + sizeof(Mac), done.byte_len);
  Mac mac;
  std::memcpy(mac.data(), first + 3, mac.size());
  EXPECT_TRUE(are_equal(mac, authentication->of_message(false, 0, {first, 3})));
}

TEST_F(NetdevSession, End_KeepsTheFirstReason) {
  ASSERT_TRUE(connect());
  asking->session->end("one");
  asking->session->end("other");
  EXPECT_EQ("one", asking->session->why());
  asking->session->reject("too late");
  EXPECT_EQ("one", asking->session->why());
}

TEST_F(NetdevSession, ServiceOf_NetworksAndNodes_AreDifferentAndLocal) {
  EXPECT_NE(service_of("lab"), service_of("lob"));
  EXPECT_NE(service_of("lab"), service_of("lab", ""));
  EXPECT_NE(service_of("lab", "n1"), service_of("lab", "n2"));
  EXPECT_EQ(service_of("lab", "n1"), service_of("lab", "n1"));
  for (const uint64_t service : {service_of("lab"), service_of("lab", "n1")}) EXPECT_EQ(2u, service >> 56);
}

}  // namespace
}  // namespace nupa::netdev
