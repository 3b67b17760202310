#include "ccl/comm/communicator.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "ccl/mapped/at_once.h"

namespace nupa::ccl {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr size_t kPage = 4096;

/// splitmix64's finisher: every bit depends on every other.
uint64_t mix(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

/// When one rank has left and the others say nothing more for so long, they have left too.
constexpr int64_t kLeavingNs = 500'000'000;
/// In names: no number of a split.
constexpr uint64_t kShrinking = UINT64_MAX;

}  // namespace

CommunicatorId derive(const CommunicatorId& id, uint64_t first, uint64_t second) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  const uint64_t low = mix(id[0] + mix(first + kGolden) + 2 * mix(second + 2 * kGolden));
  return {low, mix(id[1] + mix(low) + mix(second + 3 * kGolden))};
}

/// One call, in its turn.
class Communicator::Task final : public Job {
 public:
  Task(Communicator& communicator, Call call) : communicator_(communicator), call_(std::move(call)) {
    if (call_.reducer.factor != nullptr) call_.reducer.factor = &call_.factor;
    if (is_observed()) call_.queued_ns = base::now_ns();
  }
  int run() override { return communicator_.run_now(call_); }

 private:
  Communicator& communicator_;
  Call call_;
};

/// The lanes of one kind that links have.
class Communicator::LaneWays final : public LaneGroup::Ways {
 public:
  LaneWays(Links& links, LaneKind kind) : links_(links), kind_(kind) {}
  void want(uint32_t rank) override { links_.want(rank); }
  Wait ready(uint32_t rank) override { return links_.ready(rank); }
  Lane& lane(uint32_t rank) override { return links_.lane(rank, kind_); }
  uint32_t ahead() const override { return links_.channels().ahead(); }
  bool is_used(uint32_t rank) const override {
    return links_.ready(rank).is_over() &&
           (links_.lane(rank, LaneKind::kCollective).is_used() || links_.lane(rank, LaneKind::kMessage).is_used());
  }

 private:
  Links& links_;
  const LaneKind kind_;
};

Communicator::Communicator(std::shared_ptr<Endpoint> endpoint, const CommunicatorId& id, std::vector<RankCard> cards,
                           const CommunicatorOptions& options)
    : endpoint_(std::move(endpoint)), id_(id), cards_(std::move(cards)), options_(options) {}

Outcome<std::unique_ptr<Communicator>> Communicator::make(std::shared_ptr<Endpoint> endpoint, const CommunicatorId& id,
                                                          uint32_t rank, std::vector<RankCard> cards,
                                                          const CommunicatorOptions& options) {
  std::unique_ptr<Communicator> made(new Communicator(std::move(endpoint), id, std::move(cards), options));
  made->topology_ = topology_of(rank, made->cards_);
  if (auto opened = made->open(); !opened) return tl::unexpected(opened.error());
  return made;
}

Outcome<void> Communicator::open() {
  if (options_.deterministic && ranks() > kMaxSources)
    return fault(ENOTSUP, "NUPA_CCL_DETERMINISTIC is for up to " + std::to_string(kMaxSources) + " ranks");
  const ChannelLayout channels(ranks());
  const size_t channels_at = arena_bytes(options_.slot_bytes);
  // Ranks that differ in these would wait for each other: links refuse arenas of another length.
  const size_t bytes =
      channels_at + channels.bytes() + (options_.checks ? kPage : 0) + (options_.deterministic ? 2 * kPage : 0);
  auto arena = endpoint_->device().alloc_mr(endpoint_->pd(), bytes,
                                            access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead);
  if (!arena) return fault(arena.error().code, std::string("no memory for a communicator: ") + arena.error().what);
  arena_ = std::move(*arena);
  if (!topology_.is_one_memory()) {
    auto wires = WirePort::open(endpoint_->device(), channels.wire_requests(), [this](uint32_t rank) {
      // A rank that has told its end may have ended its wires since, and lives.
      if (!links_->has_ended(rank)) on_end({ECONNRESET, rank});
    });
    if (!wires) return tl::unexpected(wires.error());
    wires_ = std::move(*wires);
  }
  const Links::Places places{cards_, *arena_, channels_at, channels, wires_.get()};
  links_ = std::make_unique<Links>(*endpoint_, id_, rank(), places, topology_.rules,
                                   [this](const Cause& cause) { on_end(cause); });
  if (const int error = links_->open(); error != 0)
    return fault(error, "rank " + std::to_string(rank()) + " of this communicator is in this process already");
  collective_ways_ = std::make_unique<LaneWays>(*links_, LaneKind::kCollective);
  message_ways_ = std::make_unique<LaneWays>(*links_, LaneKind::kMessage);
  groups_ = std::make_unique<Groups>(Groups::Places{endpoint_->allocations(), cards_, topology_, options_, *links_,
                                                    *collective_ways_, *this, [this](uint32_t rank) {
                                                      on_end({ECONNRESET, rank});
                                                    }});
  begin_observing();
  return {};
}

Communicator::~Communicator() = default;

Cause Communicator::ended() const {
  const auto* const head = static_cast<const ArenaHead*>(arena_->addr());
  return Cause::unpacked(head->ended.load(std::memory_order_acquire));
}

void Communicator::on_long_wait(const Wait& wait, bool is_late) {
  if (wait.rank != kNoRank) links_->probe(wait.rank, is_late);
}

Cause Communicator::on_timeout(const Wait& wait) {
  end({ETIMEDOUT, links_->last_waited_for(wait.rank)});
  return ended();
}

std::string Communicator::text_of(const Cause& cause) const {
  if (!cause) return "";
  if (cause.error == EPROTO && checker_ != nullptr && !checker_->text().empty()) return checker_->text();
  if (cause.rank >= cards_.size()) return std::strerror(cause.error);
  const std::string who = "rank " + std::to_string(cause.rank) + " (" + cards_[cause.rank].text() + ")";
  if (cause.error == ECONNRESET) return who + " is gone";
  if (cause.error == ETIMEDOUT)
    return who + " was waited for in vain for " + std::to_string(options_.limit_ns / kNsPerSecond) + " s";
  if (cause.error == ECANCELED) return who + " has aborted";
  if (cause.error == EPROTO)
    return who +
           " has called something else, or has other settings (NUPA_CCL_...); NUPA_CCL_CHECK=1 on all ranks says more";
  return who + ": " + std::strerror(cause.error);
}

Messages& Communicator::messages() {
  std::call_once(messages_once_, [this] {
    messages_.reset(new Messages(rank(), ranks(), *message_ways_, *this, topology_.rules, options_.limit_ns));
  });
  return *messages_;
}

void Communicator::look() {
  if (wires_ != nullptr) wires_->poll();
}

void Communicator::sleep(int64_t limit_ns) {
  if (wires_ != nullptr)
    wires_->sleep(limit_ns);
  else
    Surroundings::sleep(limit_ns);
}

int Communicator::run_now(const Call& call) {
  if (const Cause cause = ended(); cause) return cause.error;
  return is_observed() ? run_observed(call) : do_now(call);
}

int Communicator::do_now(const Call& call) {
  const int error = groups_->use(call, [&](const auto& algorithm, auto& group) {
    algorithm_ = algorithm.name;
    Steps steps = algorithm.start(group, call);
    return run_steps(steps, topology_.rules, *this, options_.limit_ns);
  });
  // What one rank has stopped at, the others would wait for.
  if (__builtin_expect(error != 0, 0)) {
    if (!ended()) end({error, rank()});
    links_->call_in_loans();
  }
  return error;
}

int Communicator::run(const Call& call) {
  if (__builtin_expect(executor_.try_take(), 1)) {
    const int error = run_now(call);
    executor_.give_back();
    return error;
  }
  auto job = start(call);
  return job ? wait(*job) : job.error().code;
}

int Communicator::run_line(const LineCall& call) {
  if (groups_->at_once() == nullptr || is_observed() || !executor_.try_take()) return kNotNow;
  MappedGroup& group = *groups_->at_once();
  int error = ended().error;
  if (error == 0) error = mapped::may_begin(group, call) ? exchange_lines(group, call) : kNotNow;
  executor_.give_back();
  return error;
}

int Communicator::exchange_lines(MappedGroup& group, const LineCall& call) {
  const mapped::Exchange exchange = mapped::begin_line(group, call);
  if (!mapped::all_came(group, exchange)) {
    Steps steps = mapped::until_all_came(group, exchange);
    if (const int error = run_steps(steps, topology_.rules, *this, options_.limit_ns); error != 0) {
      if (!ended()) end({error, rank()});
      return error;
    }
  }
  mapped::end_line(group, call, exchange);
  return 0;
}

Outcome<std::shared_ptr<Job>> Communicator::start(Call call) {
  auto job = std::make_shared<Task>(*this, std::move(call));
  if (const int error = executor_.add(job); error != 0) return fault(error, "no thread for a communicator");
  return job;
}

std::string Communicator::plan_of(const Call& call) {
  while (!executor_.try_take()) std::this_thread::yield();
  std::string text;
  groups_->use(call, [&](const auto& algorithm, const auto& group) {
    text = explain(algorithm, group);
    return 0;
  });
  executor_.give_back();
  return text;
}

Outcome<std::unique_ptr<Communicator>> Communicator::split(int64_t color, int64_t key, Purpose purpose) {
  struct Wish {
    int64_t color;
    int64_t key;
  };
  const uint64_t number = ++splits_;
  const Wish mine{color, key};
  std::vector<Wish> all(ranks());
  Call call;
  call.operation = Operation::kAllGather;
  call.in = &mine;
  call.out = all.data();
  call.elements = sizeof mine;
  call.out_counts.each = sizeof mine;
  call.purpose = purpose;
  if (const int error = run(call); error != 0) return fault(error, text_of(ended()));
  if (color == kNoColor) return nullptr;
  std::vector<uint32_t> members;
  for (uint32_t rank = 0; rank < ranks(); ++rank)
    if (all[rank].color == color) members.push_back(rank);
  std::stable_sort(members.begin(), members.end(), [&](uint32_t a, uint32_t b) { return all[a].key < all[b].key; });
  std::vector<RankCard> cards;
  uint32_t own = 0;
  for (const uint32_t member : members) {
    if (member == rank()) own = static_cast<uint32_t>(cards.size());
    cards.push_back(cards_[member]);
  }
  return make(endpoint_, derive(id_, number, static_cast<uint64_t>(color)), own, std::move(cards), options_);
}

void Communicator::on_end(const Cause& cause) {
  if (cause.error == ECONNRESET && is_leaving_.load()) {
    int64_t none = 0;
    first_left_ns_.compare_exchange_strong(none, base::now_ns());
    return;
  }
  if (cause.error == ECONNRESET && cause.rank < ranks()) {
    std::lock_guard lock(gone_mutex_);
    gone_.resize(ranks());
    gone_[cause.rank] = true;
  }
  end(cause);
}

std::vector<bool> Communicator::gone() const {
  std::vector<bool> all;
  {
    std::lock_guard lock(gone_mutex_);
    all = gone_;
  }
  all.resize(ranks());
  for (uint32_t other = 0; other < ranks(); ++other)
    if (other != rank() && cards_[rank()].sees_end_of(cards_[other])) all[other] = true;
  const Cause cause = ended();
  if ((cause.error == ECONNRESET || cause.error == ETIMEDOUT) && cause.rank < ranks()) all[cause.rank] = true;
  return all;
}

Outcome<std::unique_ptr<Communicator>> Communicator::shrink() {
  const CommunicatorId id = derive(id_, kShrinking, ++shrinks_);
  auto survivors = std::make_shared<Survivors>(*endpoint_, id, rank(), cards_);
  if (const int error = survivors->open(); error != 0) return fault(error, "this communicator is being shrunk already");
  const auto known_now = [this] {
    // Nobody else may look at the wires any more: those that break meanwhile would not be seen.
    look();
    return gone();
  };
  const auto is_gone = survivors->agree(known_now, options_.limit_ns);
  if (!is_gone) return tl::unexpected(is_gone.error());
  std::vector<RankCard> cards;
  uint32_t own = 0;
  Cause late;
  const std::vector<bool> known = gone();
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    if ((*is_gone)[rank]) continue;
    if (rank == this->rank())
      own = static_cast<uint32_t>(cards.size());
    else if (known[rank])
      late = {ECONNRESET, static_cast<uint32_t>(cards.size())};
    cards.push_back(cards_[rank]);
  }
  auto made = make(endpoint_, derive(id, 0, 0), own, std::move(cards), options_);
  if (!made) return made;
  (*made)->survivors_ = std::move(survivors);
  // Whoever died after it was counted is the new communicator's affair, as if it had died a moment later.
  if (late) (*made)->end(late);
  // Nobody gives the old one up while others still look who lives there.
  Call barrier;
  (*made)->run(barrier);
  return made;
}

/// Goes on without ranks that have left before this one.
class Communicator::Leaving final : public Surroundings {
 public:
  explicit Leaving(Communicator& communicator) : communicator_(communicator) {}
  Cause ended() const override {
    const Cause cause = communicator_.ended();
    if (cause) return cause;
    const int64_t left_ns = communicator_.first_left_ns_.load(std::memory_order_acquire);
    if (left_ns == 0 || base::now_ns() - left_ns < kLeavingNs) return {};
    return {ECONNRESET, kNoRank};
  }
  void look() override { communicator_.look(); }
  void sleep(int64_t limit_ns) override { communicator_.sleep(std::min(limit_ns, kLeavingNs)); }
  void on_long_wait(const Wait& wait, bool is_late) override { communicator_.on_long_wait(wait, is_late); }
  void note_long_wait_for(uint32_t rank) override { communicator_.note_long_wait_for(rank); }
  Cause on_timeout(const Wait& wait) override { return communicator_.on_timeout(wait); }

 private:
  Communicator& communicator_;
};

int Communicator::finish() {
  if (ranks() == 1) return 0;
  while (!executor_.try_take()) std::this_thread::yield();  // the program has waited for all that it began
  int error = ended().error;
  if (error == 0 && checker_ != nullptr) {
    Call call;
    call.purpose = Purpose::kDestroy;
    error = check(call);
  }
  if (error == 0) {
    Steps all_here = groups_->all_here();
    error = run_steps(all_here, topology_.rules, *this, options_.limit_ns);
  }
  if (error == 0) {
    // From here on whoever is gone has left: it had all that it needed.
    is_leaving_.store(true);
    Leaving around(*this);
    Steps steps = groups_->depart();
    error = run_steps(steps, topology_.rules, around, options_.limit_ns);
    if (error == ECONNRESET) error = 0;
  }
  executor_.give_back();
  return error;
}

}  // namespace nupa::ccl
