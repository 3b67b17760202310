// SPDX-License-Identifier: Apache-2.0
#include "netdev/session.h"

#include <endian.h>
#include <nettle/sha2.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/gid_text.h"
#include "base/log.h"
#include "base/system_error.h"

namespace nupa::netdev {
namespace {

constexpr uint32_t kMagic = 0x54454e55;  // "UNET"
constexpr uint16_t kVersion = 1;

/// The private data of a REQ and a REP. Numbers are little-endian.
struct Handshake {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t queues = 0;
  uint32_t qp_num = 0;
  Nonce nonce{};
  Mac mac{};

  /// Returns the bytes that the mac covers.
  std::span<const std::byte> covered() const {
    return {reinterpret_cast<const std::byte*>(this), offsetof(Handshake, nonce)};
  }
};
static_assert(sizeof(Handshake) == 60 && sizeof(Handshake) <= PrivateData<92>::room());

/// Parses a handshake of any version, so that a node with the key learns that the versions differ.
std::optional<Handshake> handshake_in(std::span<const std::byte> data, uint32_t qp_num) {
  Handshake handshake;
  if (data.size() < sizeof handshake) return std::nullopt;
  std::memcpy(&handshake, data.data(), sizeof handshake);
  if (handshake.magic != kMagic || handshake.qp_num != qp_num || handshake.queues == 0 || handshake.queues > kMaxQueues)
    return std::nullopt;
  return handshake;
}

// Messages on the control queue pair: kind(1), text, mac(32).
constexpr uint8_t kPeerInfo = 1;
constexpr uint8_t kReady = 2;
constexpr uint8_t kRefusal = 3;
constexpr size_t kMessageBytes = 4096;
/// Message slots for each direction: the peer info and one more message, with room to spare.
constexpr uint32_t kMessages = 4;
constexpr uint64_t kSends = 1;  ///< in a wr_id, beside the owner

uint64_t service_by(const std::string& text) {
  sha256_ctx context;
  sha256_init(&context);
  sha256_update(&context, text.size(), reinterpret_cast<const uint8_t*>(text.data()));
  uint64_t digest = 0;
  sha256_digest(&context, sizeof digest, reinterpret_cast<uint8_t*>(&digest));
  constexpr uint64_t kLocal = uint64_t{2} << 56;
  return kLocal | digest >> 8;
}

}  // namespace

uint64_t service_of(const std::string& network) { return service_by("nupa net " + network); }
uint64_t service_of(const std::string& network, const std::string& node) {
  return service_by("nupa net " + network + " node " + node);
}

Session::Session(NodeContext& context, uint64_t owner, bool asks)
    : context_(context),
      owner_(owner),
      asks_(asks),
      began_ns_(context.clock.now_ns()),
      authentication_(context.key, context.network) {}

Session::~Session() {
  close_links();
  if (id_ != 0) context_.manager.release(id_);
}

Result<void> Session::prepare() {
  auto buffers = context_.device.alloc_mr(context_.pd, 2 * kMessages * kMessageBytes, access::kLocalWrite);
  if (!buffers) return tl::unexpected(buffers.error());
  buffers_ = std::move(*buffers);
  auto qp = context_.device.create_qp(
      &context_.pd,
      {.send_cq = &context_.cq,
       .recv_cq = &context_.cq,
       .cap = {.max_send_wr = kMessages, .max_recv_wr = kMessages, .max_send_sge = 1, .max_recv_sge = 1}});
  if (!qp) return tl::unexpected(qp.error());
  qp_ = std::move(*qp);
  if (getrandom(&psn_, sizeof psn_, 0) != sizeof psn_)
    return base::fail_call(errno, "cannot get random numbers from the kernel");
  psn_ &= 0xffffff;
  return {};
}

Result<std::unique_ptr<Session>> Session::ask(NodeContext& context, uint64_t owner, uint64_t service,
                                              const ConnectionRoute& route) {
  std::unique_ptr<Session> session(new Session(context, owner, true));
  if (auto prepared = session->prepare(); !prepared) return tl::unexpected(prepared.error());
  auto nonce = new_nonce();
  if (!nonce) return tl::unexpected(nonce.error());
  session->authentication_.set_asking(*nonce);
  session->path_ = route.path;
  session->gid_index_ = context.gid_index_of(route);
  Handshake handshake;
  handshake.queues = static_cast<uint16_t>(context.packet_loops.size());
  handshake.qp_num = session->qp_->number();
  handshake.nonce = *nonce;
  handshake.mac = session->authentication_.asks(handshake.covered());
  ConnectionRequest request;
  request.service_id = service;
  request.ca_guid = be64toh(context.device.query().node_guid);
  request.path = route.path;
  request.qp_num = handshake.qp_num;
  request.starting_psn = session->psn_;
  constexpr uint8_t kTries = 4;
  request.max_cm_retries = kTries;
  request.private_data.set(&handshake, sizeof handshake);
  if (const int error = context.manager.connect(request, route, owner, &session->id_); error != 0)
    return base::fail_call(error, "cannot send a connection request to ", base::gid_text(route.path.remote));
  return session;
}

Result<std::unique_ptr<Session>> Session::answer(NodeContext& context, uint64_t owner, ConnectionId id,
                                                 const ConnectionRequest& request) {
  std::unique_ptr<Session> session(new Session(context, owner, false));
  session->id_ = id;
  const auto asked =
      handshake_in(std::span(request.private_data.bytes).first(request.private_data.length), request.qp_num);
  bool proved = asked.has_value();
  if (proved) {
    session->authentication_.set_asking(asked->nonce);
    proved = are_equal(asked->mac, session->authentication_.asks(asked->covered()));
  }
  if (!proved) {
    // An unknown peer gets the same answer as from a host without the network.
    context.manager.reject(id, RejectReason::kInvalidServiceId, {});
    return fail(EACCES, base::gid_text(request.path.remote), " sent a connection request without the network's key");
  }
  if (asked->version != kVersion) {
    context.manager.reject(id, RejectReason::kConsumer, {});
    return fail(EPROTO, base::gid_text(request.path.remote), " has another version of nupa net");
  }
  auto nonce = new_nonce();
  auto prepared = session->prepare();
  auto own = context.manager.find_address(request.path.local);
  if (!nonce || !prepared || !own) {
    context.manager.reject(id, RejectReason::kNoResources, {});
    return tl::unexpected(!nonce ? nonce.error() : !prepared ? prepared.error() : own.error());
  }
  session->authentication_.set_answering(*nonce);
  session->path_ = request.path;
  session->gid_index_ = context.gid_index_of(*own);
  if (auto channels = session->make_channels(asked->queues); !channels) {
    context.manager.reject(id, RejectReason::kNoResources, {});
    return tl::unexpected(channels.error());
  }
  if (const int error = session->bring_up(session->gid_index_, request.qp_num, request.starting_psn); error != 0) {
    context.manager.reject(id, RejectReason::kNoResources, {});
    return base::fail_call(error, "cannot connect a queue pair to ", base::gid_text(request.path.remote));
  }
  Handshake handshake;
  handshake.queues = static_cast<uint16_t>(context.packet_loops.size());
  handshake.qp_num = session->qp_->number();
  handshake.nonce = *nonce;
  handshake.mac = session->authentication_.answers(handshake.covered());
  ConnectionReply reply;
  reply.ca_guid = be64toh(context.device.query().node_guid);
  reply.qp_num = handshake.qp_num;
  reply.starting_psn = session->psn_;
  reply.rnr_retry_count = request.rnr_retry_count;
  reply.private_data.set(&handshake, sizeof handshake);
  if (const int error = context.manager.accept(id, reply); error != 0)
    return base::fail_call(error, "cannot accept the connection request");
  session->state_ = State::kProving;
  return session;
}

int Session::bring_up(uint32_t gid_index, uint32_t qp_num, uint32_t psn) {
  if (const int error = initialise(*qp_, 0); error != 0) return error;
  for (uint32_t i = 0; i < kMessages; ++i) {
    const Sge room{reinterpret_cast<uint64_t>(buffers_->addr()) + i * kMessageBytes, kMessageBytes, buffers_->lkey()};
    if (const int error = qp_->post_recv({.wr_id = owner_ << 1, .sg_list = &room, .num_sge = 1}); error != 0)
      return error;
  }
  path_options_.dgid = path_.remote;
  path_options_.sgid_index = static_cast<uint8_t>(gid_index);
  path_options_.max_rd_atomic = 1;
  path_options_.path_mtu = path_.mtu;
  path_options_.hop_limit = path_.hop_limit;
  path_options_.traffic_class = path_.traffic_class;
  ConnectOptions options = path_options_;
  options.dest_qp_num = qp_num;
  options.rq_psn = psn_;
  options.sq_psn = psn;
  options.timeout = path_.ack_timeout;
  return connect_initialised(*qp_, options);
}

Result<void> Session::make_channels(uint32_t queues_there) {
  const size_t count = std::max<size_t>(queues_there, context_.packet_loops.size());
  for (size_t i = 0; i < count; ++i) {
    auto channel = PeerChannel::create(context_.device, context_.pd, packet_loop_of(i).cq(), context_.next_channel++);
    if (!channel) return tl::unexpected(channel.error());
    channels_.push_back(std::move(*channel));
  }
  return {};
}

void Session::on_reply(const ConnectionReply& reply) {
  if (state_ != State::kConnecting || !asks_) return;
  const auto answered =
      handshake_in(std::span(reply.private_data.bytes).first(reply.private_data.length), reply.qp_num);
  bool proved = answered.has_value();
  if (proved) {
    authentication_.set_answering(answered->nonce);
    proved = are_equal(answered->mac, authentication_.answers(answered->covered()));
  }
  if (!proved) {
    context_.manager.reject(id_, RejectReason::kConsumer, {});
    return end("the peer does not have the network's key");
  }
  if (answered->version != kVersion) {
    context_.manager.reject(id_, RejectReason::kConsumer, {});
    return end("the peer has protocol version " + std::to_string(answered->version) + ", this node version " +
               std::to_string(kVersion));
  }
  if (auto channels = make_channels(answered->queues); !channels) {
    context_.manager.reject(id_, RejectReason::kConsumer, {});
    return end(channels.error().what());
  }
  int error = bring_up(gid_index_, reply.qp_num, reply.starting_psn);
  if (error == 0) error = context_.manager.establish(id_);
  if (error != 0) return end("cannot connect a queue pair");
  state_ = State::kProving;
  send_peer_info();
}

void Session::send_peer_info() {
  PeerInfo peer_info = context_.self;
  for (const auto& channel : channels_) peer_info.channels.push_back(channel->info());
  send_message(kPeerInfo, peer_info.encode());
}

void Session::send_message(uint8_t kind, std::string_view text) {
  const uint64_t at = (kMessages + messages_sent_ % kMessages) * kMessageBytes;
  auto* const place = static_cast<std::byte*>(buffers_->addr()) + at;
  if (1 + text.size() + kMacBytes > kMessageBytes) return end("the message to the peer is too long");
  place[0] = std::byte{kind};
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(place + 1));
  const Mac mac = authentication_.of_message(asks_, messages_sent_, {place, 1 + text.size()});
  std::memcpy(place + 1 + text.size(), mac.data(), mac.size());
  const Sge piece{reinterpret_cast<uint64_t>(place), static_cast<uint32_t>(1 + text.size() + mac.size()),
                  buffers_->lkey()};
  const int error = qp_->post_send({.wr_id = owner_ << 1 | kSends,
                                    .sg_list = &piece,
                                    .num_sge = 1,
                                    .opcode = Opcode::kSend,
                                    .flags = send_flag::kSignaled | send_flag::kSolicited});
  ++messages_sent_;
  if (error != 0) end("cannot send to the peer");
}

void Session::on_completion(const WorkCompletion& completion) {
  if (state_ == State::kOver) return;
  if (completion.status != WcStatus::kSuccess) return end("the connection failed");
  if ((completion.wr_id & kSends) != 0) return;
  if (completion.opcode != WcOpcode::kRecv || messages_received_ >= kMessages)
    return end("the peer sent an unexpected message");
  const auto* const message = static_cast<const std::byte*>(buffers_->addr()) + messages_received_ * kMessageBytes;
  receive_message({message, std::min<size_t>(completion.byte_len, kMessageBytes)});
}

void Session::receive_message(std::span<const std::byte> message) {
  if (message.size() <= kMacBytes) return end("the peer sent a message that is too short");
  const std::span<const std::byte> content = message.first(message.size() - kMacBytes);
  Mac mac;
  std::memcpy(mac.data(), message.data() + content.size(), mac.size());
  if (!are_equal(mac, authentication_.of_message(!asks_, messages_received_, content)))
    return end("the peer does not have the network's key");
  ++messages_received_;
  const std::string_view text(reinterpret_cast<const char*>(content.data()) + 1, content.size() - 1);
  switch (std::to_integer<uint8_t>(content[0])) {
    case kPeerInfo:
      if (state_ != State::kProving || peer_info_) return end("the peer sent its peer info twice");
      peer_info_ = PeerInfo::decode(text);
      if (!peer_info_ || peer_info_->channels.size() != channels_.size()) {
        peer_info_.reset();
        return end("the peer sent invalid peer info");
      }
      return;
    case kReady:
      if (state_ != State::kAgreed) return end("the peer sent READY too early");
      return open_links();
    case kRefusal:
      refused_ = true;
      return end("refused: " + std::string(text));
    default:
      return end("the peer sent an unexpected message");
  }
}

void Session::accept() {
  agreed_ = true;
  if (const int error = connect_channels(); error != 0) return end("cannot connect a channel");
  state_ = State::kAgreed;
  if (!asks_) return send_peer_info();
  send_message(kReady, {});
  if (state_ == State::kAgreed) open_links();
}

int Session::connect_channels() {
  for (size_t i = 0; i < channels_.size(); ++i) {
    // Watched before it is connected, so that early completions are not lost.
    if (const int error = packet_loop_of(i).watch(*channels_[i]); error != 0) return error;
    linked_ = true;
    if (const int error = channels_[i]->connect(path_options_, peer_info_->channels[i]); error != 0) return error;
  }
  return 0;
}

void Session::open_links() {
  links_.resize(context_.packet_loops.size());
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = links_[i];
    traffic_.push_back(std::make_unique<LinkStatistics>());
    link.traffic = traffic_.back().get();
    link.mtu = peer_info_->mtu;
    link.takes_datagrams = peer_info_->takes_datagrams;
    for (const Prefix& prefix : peer_info_->addresses) link.addresses.push_back(prefix.address);
    for (size_t channel = i; channel < channels_.size(); channel += links_.size()) {
      channels_[channel]->start_sending();
      link.channels.push_back(channels_[channel].get());
    }
  }
  for (size_t i = 0; i < links_.size(); ++i)
    if (!call(i, [&] { context_.packet_loops[i]->attach(links_[i]); })) return;
  state_ = State::kUp;
}

bool Session::call(size_t packet_loop, const std::function<void()>& what) {
  if (context_.packet_loops[packet_loop]->call(what)) return true;
  end("queue " + std::to_string(packet_loop) + " of the interface stopped: no memory, or the interface was removed");
  return false;
}

void Session::activate() {
  for (size_t i = 0; i < links_.size(); ++i)
    if (!call(i, [&] { context_.packet_loops[i]->route_to(links_[i]); })) return;
}

void Session::close_links() {
  if (!linked_) return;
  linked_ = false;
  for (size_t i = 0; i < links_.size(); ++i)
    context_.packet_loops[i]->insist([&] { context_.packet_loops[i]->detach(links_[i]); });
  for (size_t i = 0; i < channels_.size(); ++i)
    packet_loop_of(i).insist([&] { packet_loop_of(i).unwatch(*channels_[i]); });
}

void Session::reject(const std::string& why) {
  if (state_ == State::kOver) return;
  agreed_ = true;
  send_message(kRefusal, why);
  why_ = "refused: " + why;
}

void Session::end(const std::string& why) {
  if (state_ == State::kOver) return;
  state_ = State::kOver;
  // After a rejection the peer disconnects, which is not the reason.
  if (why_.empty()) why_ = why;
  close_links();
}

int Session::channel_error() const {
  for (const auto& channel : channels_)
    if (channel->error() != 0) return channel->error();
  return 0;
}

void Session::probe() {
  // The channel exists until close_links(), whose call runs after this one.
  if (state_ == State::kUp) packet_loop_of(0).post([channel = channels_[0].get()] { channel->probe(); });
}

int64_t Session::round_trip_ns() const { return channels_.empty() ? 0 : channels_[0]->round_trip_ns(); }
std::string_view Session::transport() const { return channels_.empty() ? "" : channels_[0]->transport(); }

}  // namespace nupa::netdev
