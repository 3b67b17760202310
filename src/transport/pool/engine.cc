// SPDX-License-Identifier: Apache-2.0
/// The engine's life, its links and its queue pairs. engine_turn.cc has the turns, engine_house.cc what they do from
/// time to time, and engine_sleep.cc the sleep between them.
#include "transport/pool/engine.h"

#include <algorithm>

#include "base/log.h"
#include "base/system_error.h"
#include "progress/cpu.h"
#include "progress/late_events.h"
#include "progress/waiter.h"
#include "transport/pool/self_channel.h"

namespace nupa::pool {
namespace {

/// How long the end of the process waits for room in its channels, and for a channel that opens.
constexpr int64_t kFarewellNs = 10'000'000;
constexpr int64_t kOpeningFarewellNs = 200'000'000;
/// Datagrams that wait for their channels.
constexpr size_t kMostDatagrams = 1024;
/// Management datagrams that wait for their channel.
constexpr size_t kMostMads = 256;
/// Looks at a send lock that another thread holds: about two microseconds.
constexpr int kHoldLooks = 64;

}  // namespace

thread_local constinit const Engine* Engine::t_turning = nullptr;

bool Hold::take(Receiver& receiver) {
  if (held_ == &receiver) return true;
  release();
  bool entered = receiver.enter();
  for (int look = 0; !entered && look < kHoldLooks; ++look) {
    progress::relax();
    entered = receiver.enter();
  }
  if (!entered) return false;
  held_ = &receiver;
  progress::LateEvents::begin();
  return true;
}

void Hold::release() {
  if (held_ == nullptr) return;
  held_->leave();
  held_ = nullptr;
  progress::LateEvents::end();
}

Result<std::unique_ptr<Engine>> Engine::open(Pool& pool, Description description, Clock clock) {
  std::unique_ptr<Engine> engine(new Engine(pool, clock));
  if (auto opened = engine->poller_.open(); !opened) return tl::unexpected(opened.error());
  engine->description_ = std::move(description);
  const auto self = pool.join(engine->description_);
  if (!self) {
    engine->closed_ = true;
    return tl::unexpected(self.error());
  }
  engine->self_ = *self;
  if (pool.doorbell() >= 0)
    if (auto added = engine->poller_.right().add(pool.doorbell()); !added) return tl::unexpected(added.error());
  if (const int error = progress::join_forks(progress::ForkStage::kPackets, engine.get()); error != 0)
    return fail(error, "no memory for fork handlers");
  const progress::ExitAction answers{[](void* mine) { static_cast<Engine*>(mine)->process_ends(); }, engine.get()};
  const progress::ExitAction goodbye{[](void* mine) { static_cast<Engine*>(mine)->say_goodbye(); }, engine.get()};
  for (const auto& [stage, action] :
       {std::pair{progress::ExitStage::kPackets, answers}, std::pair{progress::ExitStage::kHost, goodbye}})
    if (const int error = progress::at_exit(stage, action); error != 0)
      return base::fail_call(error, "cannot register an exit handler");
  return engine;
}

Engine::~Engine() {
  progress::forget_at_exit(this);
  progress::leave_forks(this);
  if (!closed_ && keeps_datagrams()) process_ends();
  poller_.stop();
  if (closed_) return;
  closed_ = true;
  for (const auto& link : links_) {
    auto channel = link->take_channel();
    if (channel != nullptr && !(link->peer() == self_)) pool_.close_channel(std::move(channel));
  }
  pool_.leave();
}

bool Engine::in_child() {
  closed_ = true;
  poller_.in_child();
  return false;
}

void Engine::process_ends() {
  const auto lock = poller_.claim();
  if (closed_) return;
  const auto have_left = [this] {
    flush_answers();
    if (keeps_datagrams()) open_wanted(now_ns_());
    return !answers_wait() && !keeps_datagrams();
  };
  const int64_t limit_ns = keeps_datagrams() ? kOpeningFarewellNs : kFarewellNs;
  progress::wait_for(have_left, progress::kPeerPolicy, progress::Deadline::in_ns(limit_ns));
}

void Engine::say_goodbye() {
  const auto lock = poller_.claim();
  if (closed_) return;
  closed_ = true;
  pool_.leave();
}

Result<void> Engine::describe(const std::function<void(Description&)>& change) {
  std::lock_guard lock(describe_mutex_);
  change(description_);
  return pool_.update(description_);
}

bool Engine::is_own(const Gid& gid) const {
  return gid == own_gid() || std::find(own_addresses_.begin(), own_addresses_.end(), gid) != own_addresses_.end();
}

std::optional<ProcessId> Engine::process_of(const AddressVector& vector, uint32_t qp_num) {
  const uint32_t slot = shm::slot_of(qp_num);
  if (vector.is_global && !is_own(vector.dgid)) return pool_.find(vector.dgid, slot);
  {
    std::lock_guard lock(describe_mutex_);
    const auto& slots = description_.slots;
    if (std::find(slots.begin(), slots.end(), slot) != slots.end()) return self_;
  }
  // Another host may have the same address: the pool's own one leads to processes of this host.
  return pool_.find(own_gid(), slot);
}

std::shared_ptr<Link> Engine::known_link(const ProcessId& process) {
  std::lock_guard lock(links_mutex_);
  for (const auto& link : links_)
    if (link->peer() == process && !link->is_lost()) return link;
  if (std::find(wanted_.begin(), wanted_.end(), process) == wanted_.end()) wanted_.push_back(process);
  has_work_.store(true, std::memory_order_relaxed);
  poller_.expect(now_ns_());
  return nullptr;
}

std::shared_ptr<Link> Engine::link_to(const ProcessId& process) {
  for (const auto& link : links_)
    if (link->peer() == process && !link->is_lost()) return link;
  return open_link(process);
}

std::shared_ptr<Link> Engine::link_to(const AddressVector& vector, uint32_t qp_num) {
  const auto process = process_of(vector, qp_num);
  return process ? link_to(*process) : nullptr;
}

std::shared_ptr<Link> Engine::claim_link(const AddressVector& vector, uint32_t qp_num) {
  const auto process = process_of(vector, qp_num);
  if (!process) return nullptr;
  const auto lock = poller_.claim();
  return closed_ ? nullptr : link_to(*process);
}

std::shared_ptr<Link> Engine::open_link(const ProcessId& process) {
  std::unique_ptr<Channel> channel;
  if (process == self_) {
    std::function<void()> wake;
    if (pool_.doorbell() >= 0) wake = [this] { wake_self(); };
    channel = std::make_unique<SelfChannel>(self_, std::move(wake));
  } else {
    auto opened = pool_.open_channel(process);
    if (!opened) {
      NUPA_INFO("pool: no channel to process %u of host %u: %s", process.record, process.host, opened.error().what());
      return nullptr;
    }
    channel = std::move(*opened);
  }
  auto link = std::make_shared<Link>(std::move(channel), now_ns_());
  {
    std::lock_guard lock(links_mutex_);
    links_.push_back(link);
  }
  house_ns_ = 0;
  poller_.expect(now_ns_());
  poller_.note_traffic();
  return link;
}

void Engine::wake_self() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_relaxed) != 0) poller_.expect(now_ns_());
}

Receiver* Engine::find(uint32_t number) const {
  const Bank* const bank = banks_.of(number);
  if (bank == nullptr) return nullptr;
  Receiver* const receiver = bank->receivers[shm::index_of(number)].load(std::memory_order_acquire);
  return receiver != nullptr && receiver->number() == number ? receiver : nullptr;
}

void Engine::add(Receiver& receiver) {
  banks_.make(receiver.number()).receivers[shm::index_of(receiver.number())].store(&receiver);
  {
    // Reserved here, so that posts and turns allocate nothing.
    const auto lock = poller_.claim();
    const size_t receivers = receivers_.fetch_add(1) + 1;
    owing_.reserve(receivers);
    std::lock_guard due(due_mutex_);
    due_.reserve(receivers);
    due_now_.reserve(receivers);
  }
  if (!receiver.seeks_link()) return;
  {
    std::lock_guard lock(due_mutex_);
    seekers_.push_back(&receiver);
  }
  poller_.expect(now_ns_() + kBellsNs);
}

void Engine::remove(Receiver& receiver) {
  auto& place = banks_.make(receiver.number()).receivers[shm::index_of(receiver.number())];
  Receiver* present = &receiver;
  place.compare_exchange_strong(present, nullptr);
  receivers_.fetch_sub(1);
  const auto lock = poller_.claim();
  std::erase(owing_, &receiver);
  for (const auto& link : links_) link->forget(receiver);
  if (const auto link = receiver.link(); link != nullptr && !link->is_lost())
    if (const uint64_t owed = receiver.take_owed(); owed != 0) {
      link->answers().push_back(owed);
      poller_.expect(now_ns_());
    }
  std::lock_guard due(due_mutex_);
  std::erase(due_, &receiver);
  std::erase(seekers_, &receiver);
}

void Engine::grant(Link& link, Grant grant) {
  if (!grants_.add(&grant)) return;
  Record record;
  record.kind = RecordKind::kGrant;
  record.qp_num = grant.requester;
  record.source_qp = grant.qp_num;
  record.grant = grant.number;
  record.rkey = grant.rkey;
  record.address = grant.address;
  record.bytes = grant.bytes;
  record.place = grant.offset;
  if (link.write(record, nullptr, 0) != Link::Wrote::kYes) grants_.drop(grant.number);
}

void Engine::take_back(const Grants::Which& which) {
  if (closed_.load() || !grants_.ask_back(which)) return;
  ask_peers();
  note_posted();
  poller_.expect(now_ns_());
  // This thread would wait for itself.
  if (t_turning == this) return;
  progress::wait_for([&] { return closed_.load() || !grants_.awaits(which); }, progress::kPeerPolicy,
                     progress::Deadline::in_ns(kTakeBackNs));
  const size_t left = closed_.load() ? 0 : grants_.abandon(which);
  if (left != 0)
    NUPA_WARN("pool: %zu grants of memory were not returned: their peers do not answer, and may still write there",
              left);
}

void Engine::free(const Block& block) {
  std::lock_guard lock(kept_blocks_mutex_);
  if (grants_.covers(block.offset, block.bytes) || !pool_.free(block)) kept_blocks_.push_back(block);
}

void Engine::join(uint32_t qp_num, const Gid& group) {
  std::lock_guard lock(groups_mutex_);
  members_.push_back({group, qp_num});
}

void Engine::leave(uint32_t qp_num, const Gid& group) {
  std::lock_guard lock(groups_mutex_);
  std::erase_if(members_, [&](const Member& member) { return member.qp_num == qp_num && member.group == group; });
}

bool Engine::has_members(const Gid& group) {
  std::lock_guard lock(groups_mutex_);
  return std::any_of(members_.begin(), members_.end(), [&](const Member& member) { return member.group == group; });
}

void Engine::expect(Receiver& receiver, int64_t deadline) {
  if (!receiver.is_due_.exchange(true)) {
    std::lock_guard lock(due_mutex_);
    due_.push_back(&receiver);
  }
  poller_.expect(deadline);
}

void Engine::set_mad_handler(core::MadHandler handler) {
  const auto lock = poller_.claim();
  mad_handler_ = std::move(handler);
}

void Engine::set_probe_handler(core::MadHandler handler) {
  const auto lock = poller_.claim();
  probe_handler_ = std::move(handler);
}

std::optional<ProcessId> Engine::receiver_for_host(const Gid& address) const {
  const bool is_here = is_own(address);
  std::optional<ProcessId> found;
  for (const ProcessId& process : pool_.find_all(is_here ? own_gid() : address)) {
    const auto description = pool_.describe(process);
    if (!description || !description->receives_for_host) continue;
    if (is_here && process == self_) return process;
    if (!found) found = process;
  }
  return found;
}

std::optional<ProcessId> Engine::mad_process(const core::MadPeer& peer) {
  const uint16_t number = peer.port & static_cast<uint16_t>(kProbePort - 1);
  if (number == 0) return receiver_for_host(peer.address);
  const auto record = static_cast<uint16_t>(number - 1);
  if (is_own(peer.address)) return pool_.find_record(pool_.host(), record);
  for (const ProcessId& process : pool_.find_all(peer.address))
    if (process.record == record) return process;
  return std::nullopt;
}

bool Engine::write_mad(Link& link, const core::MadDatagram& datagram, bool from_probe) {
  Record record;
  record.kind = RecordKind::kMad;
  record.length = kMadPayloadBytes;
  record.from_port = static_cast<uint16_t>(mad_port_of(self_) | (from_probe ? kProbePort : 0));
  record.to_port = datagram.remote.port;
  if ((datagram.remote.port & kProbePort) != 0) record.traits |= record_trait::kForProbe;
  std::array<std::byte, kMadPayloadBytes> payload;
  std::copy(datagram.bytes.begin(), datagram.bytes.end(), payload.begin());
  std::memcpy(payload.data() + core::MadDatagram::kBytes, &datagram.local, sizeof(Gid));
  std::memcpy(payload.data() + core::MadDatagram::kBytes + sizeof(Gid), &datagram.remote.address, sizeof(Gid));
  const base::Piece piece{payload.data(), payload.size()};
  return link.write(record, &piece, 1) == Link::Wrote::kYes;
}

Link::Wrote Engine::keep_datagram(const ProcessId& to, const Record& record, const base::Piece* pieces,
                                  uint32_t count) try {
  std::vector<std::byte> payload(record.length);
  if (!Link::gather(pieces, count, payload.data())) return Link::Wrote::kUnreadable;
  std::lock_guard lock(mads_mutex_);
  if (kept_.load(std::memory_order_relaxed) >= kMostDatagrams) return Link::Wrote::kNotNow;
  datagrams_.push_back({to, record, std::move(payload), now_ns_()});
  kept_.fetch_add(1, std::memory_order_release);
  has_work_.store(true, std::memory_order_relaxed);
  poller_.expect(now_ns_());
  return Link::Wrote::kYes;
} catch (const std::bad_alloc&) {
  return Link::Wrote::kNotNow;
}

bool Engine::keeps_mads(const ProcessId& to) {
  std::lock_guard lock(mads_mutex_);
  return std::find(mads_under_way_.begin(), mads_under_way_.end(), to) != mads_under_way_.end() ||
         std::any_of(mads_.begin(), mads_.end(), [&to](const OutMad& mad) { return mad.to == to; });
}

bool Engine::send_mad(const ProcessId& to, const core::MadDatagram& datagram, bool from_probe) {
  const auto link = known_link(to);
  // Behind those that are kept, so that the order stays.
  if (link != nullptr && !keeps_mads(to) && write_mad(*link, datagram, from_probe)) {
    note_posted();
    return true;
  }
  std::lock_guard lock(mads_mutex_);
  if (mads_.size() >= kMostMads) return false;
  mads_.push_back({to, datagram, from_probe});
  has_work_.store(true, std::memory_order_relaxed);
  poller_.expect(now_ns_());
  return true;
}

}  // namespace nupa::pool
