// SPDX-License-Identifier: Apache-2.0
#include "ccl/connect/endpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/system_error.h"

namespace nupa::ccl {
namespace {

constexpr uint32_t kReceives = 256;
constexpr uint32_t kSends = 64;
constexpr uint32_t kLinkCompletions = 8192;
constexpr size_t kGrhBytes = 40;
constexpr size_t kBufferBytes = 128;
static_assert(kGrhBytes + sizeof(Mail) <= kBufferBytes);
/// The Q_Key of all mailboxes. Unexpected mail is recognized by the communicator's id, not by this key.
constexpr uint32_t kMailKey = 0x4e55434c;

/// The endpoint of this process. The mutex is held while the endpoint is made, which takes as long as opening a device.
struct Current {
  std::mutex mutex;
  std::weak_ptr<Endpoint> endpoint;
};
progress::RenewedInChildren<Current>& g_current = *new progress::RenewedInChildren<Current>;

}  // namespace

Result<std::shared_ptr<Endpoint>> Endpoint::acquire() {
  Current& current = g_current.get();
  std::lock_guard lock(current.mutex);
  if (auto known = current.endpoint.lock()) return known;
  const std::shared_ptr<Endpoint> endpoint = progress::shared_in_process(new Endpoint);
  if (auto opened = endpoint->open(); !opened) return tl::unexpected(opened.error());
  current.endpoint = endpoint;
  return endpoint;
}

Result<void> Endpoint::open() {
  peer_info_ = peer_info_of_this_process();
  const auto devices = list_devices();
  if (devices.empty()) return fail(ENODEV, "no NUPA device (check NUPA_DEVICES)");
  // The device of a pool leads to the pool alone, and the others lead there, too.
  const auto leads_to_networks = [](const DeviceName& name) { return name.neighbours.empty(); };
  auto chosen = std::find_if(devices.begin(), devices.end(), leads_to_networks);
  if (chosen == devices.end()) chosen = devices.begin();
  auto device = open_device(chosen->name);
  if (!device) return fail(device.error());
  device_ = std::move(*device);
  for (const DeviceName& name : devices)
    if (!leads_to_networks(name))
      if (auto found = find_pool(name); !found) return found;
  peer_info_.memory_domain = device_->memory_domain();
  if (auto found = find_address(); !found) return found;
  auto pd = device_->alloc_pd();
  if (!pd) return fail(pd.error());
  pd_ = std::move(*pd);
  auto memory = device_->reg_mr(*pd_, nullptr, SIZE_MAX, 0, access::kOnDemand);
  if (!memory) return fail(memory.error());
  memory_ = std::move(*memory);
  allocations_ = std::make_unique<Allocations>(*device_, *pd_);
  if (auto opened = open_mailbox(); !opened) return opened;
  auto loop = progress::Loop::open();
  if (!loop) return tl::unexpected(loop.error());
  loop_ = std::move(*loop);
  auto watch = loop_->watch(channel_->signal_fd(), [this](uint32_t) { read(); });
  if (!watch) return tl::unexpected(watch.error());
  completions_ = std::move(*watch);
  read();
  if (const auto started = loop_->start("nupa-ccl-work"); !started) return tl::unexpected(started.error());
  return {};
}

/// Takes the host's IPv4 address (GID index 1) if it has one, as verbs programs do.
Result<void> Endpoint::find_address() {
  for (const uint8_t index : {1, 0})
    if (auto entry = device_->query_gid(1, index)) {
      gid_index_ = index;
      peer_info_.gid = entry->gid;
      return {};
    }
  return fail(EADDRNOTAVAIL, "the NUPA device has no address");
}

Result<void> Endpoint::find_pool(const DeviceName& name) {
  auto device = open_device(name.name);
  if (!device) return fail(device.error());
  auto entry = (*device)->query_gid(1, 0);
  if (!entry) return fail(entry.error());
  peer_info_.pool_gid = entry->gid;
  neighbours_ = name.neighbours;
  return {};
}

const Gid& Endpoint::address_of(const PeerInfo& other) const {
  const bool is_in_pool = std::find(neighbours_.begin(), neighbours_.end(), other.pool_gid) != neighbours_.end();
  return is_in_pool ? other.pool_gid : other.gid;
}

Result<void> Endpoint::open_mailbox() {
  auto channel = device_->create_channel();
  if (!channel) return fail(channel.error());
  channel_ = std::move(*channel);
  fcntl(channel_->fd(), F_SETFL, fcntl(channel_->fd(), F_GETFL) | O_NONBLOCK);
  auto mail_cq = device_->create_cq({.entries = kReceives + kSends, .channel = channel_.get()});
  if (!mail_cq) return fail(mail_cq.error());
  mail_cq_ = std::move(*mail_cq);
  auto link_cq = device_->create_cq({.entries = kLinkCompletions, .channel = channel_.get()});
  if (!link_cq) return fail(link_cq.error());
  link_cq_ = std::move(*link_cq);
  auto buffers = device_->alloc_mr(*pd_, kReceives * kBufferBytes, access::kLocalWrite);
  if (!buffers) return fail(buffers.error());
  buffers_ = std::move(*buffers);
  QpOptions options{.type = QpType::kUd, .send_cq = mail_cq_.get(), .recv_cq = mail_cq_.get()};
  options.cap = {.max_send_wr = kSends,
                 .max_recv_wr = kReceives,
                 .max_send_sge = 1,
                 .max_recv_sge = 1,
                 .max_inline_data = sizeof(Mail)};
  auto mailbox = device_->create_qp(pd_.get(), options);
  if (!mailbox) return fail(mailbox.error());
  mailbox_ = std::move(*mailbox);
  using namespace qp_attr;
  QpAttr attr;
  attr.qkey = kMailKey;
  constexpr std::pair<QpState, uint32_t> kWay[] = {
      {QpState::kInit, kState | kPkeyIndex | kPort | kQkey}, {QpState::kRtr, kState}, {QpState::kRts, kState | kSqPsn}};
  for (const auto& [state, mask] : kWay) {
    attr.state = state;
    if (const int error = mailbox_->modify(attr, mask); error != 0)
      return base::fail_call(error, "cannot prepare the mailbox queue pair of communicators");
  }
  peer_info_.mailbox = mailbox_->number();
  for (uint32_t i = 0; i < kReceives; ++i) {
    if (const int error = post_receive(i); error != 0)
      return base::fail_call(error, "cannot post receives to the mailbox queue pair of communicators");
  }
  return {};
}

int Endpoint::post_receive(uint64_t number) {
  const Sge sge{reinterpret_cast<uint64_t>(buffers_->addr()) + number * kBufferBytes, kBufferBytes, buffers_->lkey()};
  return mailbox_->post_recv({number, &sge, 1});
}

Endpoint::~Endpoint() {
  completions_ = nullptr;
  loop_ = nullptr;
}

int Endpoint::enter(const CommunicatorId& id, uint32_t rank, MailSink* sink) {
  if (const int error = mailbox_error_.load(); error != 0) return error;
  std::lock_guard lock(sinks_mutex_);
  return sinks_.emplace(Key{id, rank}, sink).second ? 0 : EEXIST;
}

void Endpoint::leave(const CommunicatorId& id, uint32_t rank) {
  std::lock_guard lock(sinks_mutex_);
  sinks_.erase(Key{id, rank});
}

AddressHandle* Endpoint::way_to(const Gid& gid) {
  auto& way = provider_[gid.raw];
  if (way == nullptr) {
    AddressVector vector{.dgid = gid};
    vector.sgid_index = gid_index_;
    vector.hop_limit = 64;
    vector.is_global = true;
    if (auto made = device_->create_ah(*pd_, vector)) way = std::move(*made);
  }
  return way.get();
}

void Endpoint::send(const PeerInfo& to, const Mail& mail) {
  std::lock_guard lock(send_mutex_);
  AddressHandle* const way = way_to(address_of(to));
  if (way == nullptr) return;
  const Sge sge{reinterpret_cast<uint64_t>(&mail), sizeof mail, 0};
  SendWr wr{.sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend};
  wr.flags = send_flag::kInline | send_flag::kSignaled;
  wr.remote_qpn = to.mailbox;
  wr.remote_qkey = kMailKey;
  wr.ah = way;
  // If the send queue is full, the datagram is lost.
  mailbox_->post_send(wr);
}

void Endpoint::read_mailbox() {
  WorkCompletion completion;
  while (mail_cq_->poll(&completion, 1) > 0) {
    if (completion.opcode != WcOpcode::kRecv || completion.status != WcStatus::kSuccess) continue;
    const uint64_t buffer = reinterpret_cast<uint64_t>(buffers_->addr()) + completion.wr_id * kBufferBytes;
    Mail mail;
    const bool whole = completion.byte_len == kGrhBytes + sizeof mail;
    if (whole) std::memcpy(&mail, reinterpret_cast<const std::byte*>(buffer) + kGrhBytes, sizeof mail);
    if (const int error = post_receive(completion.wr_id); error != 0) note_lost_receive(error);
    if (!whole || mail.magic != Mail::kMagic || mail.version != Mail::kVersion) continue;
    std::lock_guard lock(sinks_mutex_);
    if (const auto found = sinks_.find(Key{mail.communicator, mail.to}); found != sinks_.end())
      found->second->on_mail(mail);
  }
}

void Endpoint::note_lost_receive(int error) {
  if (mailbox_error_.exchange(error) == 0)
    std::fprintf(stderr, "nupa: ccl: cannot post a receive to the mailbox of communicators, queue pair %u: %s\n",
                 peer_info_.mailbox, std::strerror(error));
}

void Endpoint::read_links() {
  WorkCompletion completion;
  while (link_cq_->poll(&completion, 1) > 0) {
    std::lock_guard lock(sinks_mutex_);
    for (const auto& [key, sink] : sinks_) sink->on_completion(completion);
  }
}

void Endpoint::read() {
  while (channel_->wait()) {
  }
  mail_cq_->arm(false);
  link_cq_->arm(false);
  // Completions that arrived before the queues were armed raise no event.
  read_mailbox();
  read_links();
}

}  // namespace nupa::ccl
