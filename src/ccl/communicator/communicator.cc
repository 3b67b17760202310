// SPDX-License-Identifier: Apache-2.0
#include "ccl/communicator/communicator.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/system_error.h"
#include "ccl/connect/topology_of.h"
#include "ccl/algorithms/shm/inline_path.h"

namespace nupa::ccl {
namespace {

/// Replaces the arena in a forked child, which must not touch its parent's.
ArenaHead g_parents_arena;
constexpr int kInherited = ENODEV;
constexpr const char* kInheritedText = "a parent process created this communicator: create one in this process";

}  // namespace

/// A call as a job of the executor.
class Communicator::Task final : public Job {
 public:
  Task(Communicator& communicator, Call call) : communicator_(communicator), call_(std::move(call)) {
    if (is_observed()) queued_ns_ = base::now_ns();
  }
  int run() override { return communicator_.run_now(call_, queued_ns_); }

 private:
  Communicator& communicator_;
  const Call call_;
  int64_t queued_ns_ = 0;  ///< when it was queued (CLOCK_MONOTONIC), if it is observed
};

/// The channels of one kind that the communicator's links have.
class Communicator::ChannelProvider final : public ChannelGroup::Provider {
 public:
  ChannelProvider(Links& links, ChannelKind kind) : links_(links), kind_(kind) {}
  void want(uint32_t rank) override { links_.want(rank); }
  Wait ready(uint32_t rank) override { return links_.ready(rank); }
  MessageChannel& channel(uint32_t rank) override { return links_.channel(rank, kind_); }
  uint32_t ahead() const override { return links_.channels().ahead(); }
  bool is_used(uint32_t rank) const override {
    return links_.ready(rank).is_over() && (links_.channel(rank, ChannelKind::kCollective).is_used() ||
                                            links_.channel(rank, ChannelKind::kMessage).is_used());
  }

 private:
  Links& links_;
  const ChannelKind kind_;
};

Communicator::Communicator(std::shared_ptr<Endpoint> endpoint, const CommunicatorId& id,
                           std::vector<PeerInfo> peer_infos, const CommunicatorOptions& options)
    : endpoint_(std::move(endpoint)), id_(id), peer_infos_(std::move(peer_infos)), options_(options) {}

Result<std::unique_ptr<Communicator>> Communicator::make(std::shared_ptr<Endpoint> endpoint, const CommunicatorId& id,
                                                         uint32_t rank, std::vector<PeerInfo> peer_infos,
                                                         const CommunicatorOptions& options) {
  std::unique_ptr<Communicator> made(new Communicator(std::move(endpoint), id, std::move(peer_infos), options));
  made->topology_ = topology_of(rank, made->peer_infos_);
  if (auto opened = made->open(); !opened) return tl::unexpected(opened.error());
  return made;
}

Result<void> Communicator::open() {
  if (options_.deterministic && ranks() > kMaxSources)
    return fail(ENOTSUP, "NUPA_CCL_DETERMINISTIC supports at most " + std::to_string(kMaxSources) + " ranks");
  const ChannelLayout channels(ranks());
  const size_t channels_at = arena_bytes(options_.slot_bytes);
  // The length depends on these settings, because links reject arenas of another length: ranks with different settings
  // would wait for each other forever.
  const size_t bytes =
      channels_at + channels.bytes() + (options_.checks ? kPage : 0) + (options_.deterministic ? 2 * kPage : 0);
  // Ranks of other hosts write into it.
  const MemorySource source = topology_.is_one_memory() ? MemorySource::kProcess : MemorySource::kTransport;
  auto arena = endpoint_->device().alloc_mr(endpoint_->pd(), bytes,
                                            access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead, source);
  if (!arena) return fail(arena.error().code(), std::string("no memory for a communicator: ") + arena.error().what());
  arena_ = std::move(*arena);
  head_ = static_cast<const ArenaHead*>(arena_->addr());
  if (!topology_.is_one_memory()) {
    auto rdma_port = RdmaPort::open(endpoint_->device(), channels.rdma_requests(), [this](uint32_t rank) {
      // A rank that has announced its end may have closed its queue pairs since, and is alive.
      if (!links_->has_ended(rank)) on_end({ECONNRESET, rank});
    });
    if (!rdma_port) return tl::unexpected(rdma_port.error());
    rdma_port_ = std::move(*rdma_port);
  }
  const Links::Places places{peer_infos_, *arena_, channels_at, channels, rdma_port_.get()};
  links_ = std::make_unique<Links>(*endpoint_, id_, rank(), places, topology_.rules,
                                   [this](const Cause& cause) { on_end(cause); });
  if (const int error = links_->open(); error != 0)
    return fail(error, "rank " + std::to_string(rank()) + " of this communicator already exists in this process");
  collective_ways_ = std::make_unique<ChannelProvider>(*links_, ChannelKind::kCollective);
  message_ways_ = std::make_unique<ChannelProvider>(*links_, ChannelKind::kMessage);
  groups_ = std::make_unique<Groups>(Groups::Places{endpoint_->allocations(), peer_infos_, topology_, options_, *links_,
                                                    *collective_ways_, *this, [this](uint32_t rank) {
                                                      on_end({ECONNRESET, rank});
                                                    }});
  if (auto begun = begin_observing(); !begun) return begun;
  if (const int error = progress::join_forks(progress::ForkStage::kDescriptors, this); error != 0)
    return fail(error, "no memory for the communicator's fork handler");
  return {};
}

Communicator::~Communicator() { progress::leave_forks(this); }

bool Communicator::in_child() {
  is_inherited_ = true;
  g_parents_arena.ended.store(Cause{kInherited}.packed(), std::memory_order_relaxed);
  head_ = &g_parents_arena;
  executor_.abandon();
  return false;
}

Cause Communicator::ended() const { return Cause::unpacked(head_->ended.load(std::memory_order_acquire)); }

void Communicator::on_long_wait(const Wait& wait, bool is_late) {
  if (wait.rank != kNoRank) links_->probe(wait.rank, is_late);
}

Cause Communicator::on_timeout(const Wait& wait) {
  end({ETIMEDOUT, links_->last_waited_for(wait.rank)});
  return ended();
}

std::string Communicator::text_of(const Cause& cause) const {
  if (!cause) return "";
  if (is_inherited_) return kInheritedText;
  if (cause.error == EPROTO && checker_ != nullptr && !checker_->text().empty()) return checker_->text();
  if (cause.rank >= peer_infos_.size()) return std::strerror(cause.error);
  const std::string who = "rank " + std::to_string(cause.rank) + " (" + peer_infos_[cause.rank].text() + ")";
  if (cause.error == ECONNRESET) return who + " died";
  if (cause.error == ETIMEDOUT)
    return who + " did not respond within " + std::to_string(options_.limit_ns / base::kNsPerSecond) +
           " s (NUPA_CCL_TIMEOUT)";
  if (cause.error == ECANCELED) return who + " has aborted the communicator";
  if (cause.error == EPROTO)
    return who +
           " called another operation, or has other settings (NUPA_CCL_...): NUPA_CCL_CHECK=1 on all ranks shows the "
           "calls";
  return who + ": " + std::strerror(cause.error);
}

Messages& Communicator::messages() {
  std::call_once(messages_once_, [this] {
    messages_.reset(new Messages(rank(), ranks(), *message_ways_, *this, topology_.rules, options_.limit_ns));
  });
  return *messages_;
}

void Communicator::look() {
  if (rdma_port_ != nullptr) rdma_port_->poll();
}

void Communicator::sleep(int64_t limit_ns) {
  if (rdma_port_ != nullptr)
    rdma_port_->sleep(limit_ns);
  else
    ProgressHooks::sleep(limit_ns);
}

inline int Communicator::run_now(const Call& call, int64_t queued_ns) {
  if (const Cause cause = Cause::unpacked(head_->ended.load(std::memory_order_acquire)); cause) return cause.error;
  if (is_observed()) return run_observed(call, queued_ns);
  return do_now(call);
}

int Communicator::do_now(const Call& call) {
  const int error = groups_->use(call, [&](const auto& algorithm, auto& group) {
    algorithm_ = algorithm.name;
    CollectiveTask steps = algorithm.start(group, call);
    return run_tasks(steps, topology_.rules, *this, options_.limit_ns);
  });
  return __builtin_expect(error == 0, 1) ? 0 : end_by(error);
}

int Communicator::end_by(int error) {
  // The other ranks would wait for this one: end their operations, too.
  if (!ended()) end({error, rank()});
  links_->cancel_zero_copy_sends();
  return error;
}

int Communicator::run(const Call& call) {
  if (!executor_.try_take()) [[unlikely]]
    return run_in_turn(call);
  const int error = run_now(call, 0);
  executor_.give_back();
  return error;
}

int Communicator::run_line(const InlineCall& call) {
  if (groups_->inline_group() == nullptr || is_observed() || !executor_.try_take()) return kNotNow;
  ShmGroup& group = *groups_->inline_group();
  int error = ended().error;
  if (error == 0) error = shm::may_begin(group, call) ? exchange_lines(group, call) : kNotNow;
  executor_.give_back();
  return error;
}

int Communicator::exchange_lines(ShmGroup& group, const InlineCall& call) {
  const shm::Exchange exchange = shm::begin_line(group, call);
  if (!shm::all_came(group, exchange)) {
    CollectiveTask steps = shm::until_all_came(group, exchange);
    if (const int error = run_tasks(steps, topology_.rules, *this, options_.limit_ns); error != 0) {
      if (!ended()) end({error, rank()});
      return error;
    }
  }
  shm::end_line(group, call, exchange);
  return 0;
}

int Communicator::run_in_turn(const Call& call) {
  auto job = start(call);
  return job ? wait(*job) : job.error().code();
}

Result<std::shared_ptr<Job>> Communicator::start(Call call) {
  if (is_inherited_) return fail(kInherited, kInheritedText);
  auto job = std::make_shared<Task>(*this, std::move(call));
  if (const int error = executor_.add(job); error != 0)
    return base::fail_call(error, "cannot start the thread of the communicator");
  return job;
}

std::string Communicator::plan_of(const Call& call) {
  executor_.take();
  std::string text;
  groups_->use(call, [&](const auto& algorithm, const auto& group) {
    text = explain(algorithm, group);
    return 0;
  });
  executor_.give_back();
  return text;
}

void Communicator::on_end(const Cause& cause) {
  if (cause.error == ECONNRESET && is_leaving_.load()) {
    int64_t none = 0;
    first_left_ns_.compare_exchange_strong(none, base::now_ns());
    return;
  }
  if (cause.error == ECONNRESET && cause.rank < ranks()) {
    std::lock_guard lock(dead_mutex_);
    dead_.resize(ranks());
    dead_[cause.rank] = true;
  }
  end(cause);
}

}  // namespace nupa::ccl
