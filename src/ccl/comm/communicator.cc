#include "ccl/comm/communicator.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/clock.h"
#include "ccl/lane/algorithms.h"
#include "ccl/mapped/algorithms.h"
#include "ccl/mapped/at_once.h"
#include "ccl/mapped/parts.h"
#include "ccl/plan/algorithms.h"

namespace nupa::ccl {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr int64_t kDefaultLimitSeconds = 300;
constexpr size_t kDefaultSlotBytes = 256 << 10;
/// More ranks than that do not all look at each other.
constexpr uint32_t kMostMapped = 64;
constexpr size_t kPage = 4096;
constexpr size_t kLargestSlot = size_t{1} << 30;

/// A whole number of the environment; `usual` if it is not there.
Outcome<size_t> number_from(const char* name, size_t usual, size_t largest) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return usual;
  size_t value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != 0 || value == 0 || value > largest)
    return fault(EINVAL, std::string(name) + " is not a number from 1 to " + std::to_string(largest));
  return value;
}

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

Outcome<CommunicatorOptions> CommunicatorOptions::from_environment() {
  CommunicatorOptions options;
  const auto seconds = number_from("NUPA_CCL_TIMEOUT", kDefaultLimitSeconds, INT32_MAX);
  if (!seconds) return tl::unexpected(seconds.error());
  const auto slot = number_from("NUPA_CCL_SLOT_BYTES", kDefaultSlotBytes, kLargestSlot);
  if (!slot) return tl::unexpected(slot.error());
  const auto mapped = number_from("NUPA_CCL_MAPPED_RANKS", kMostMapped, kMaxSources);
  if (!mapped) return tl::unexpected(mapped.error());
  options.mapped_ranks = static_cast<uint32_t>(*mapped);
  options.limit_ns = static_cast<int64_t>(*seconds) * kNsPerSecond;
  options.slot_bytes = (*slot + kPage - 1) / kPage * kPage;
  const char* const checks = std::getenv("NUPA_CCL_CHECK");
  if (checks != nullptr && std::strcmp(checks, "0") != 0 && std::strcmp(checks, "1") != 0)
    return fault(EINVAL, "NUPA_CCL_CHECK is not 0 or 1");
  options.checks = checks != nullptr && *checks == '1';
  if (const char* const text = std::getenv("NUPA_CCL_ALGO")) options.algorithms = text;
  if (const char* const text = std::getenv("NUPA_CCL_READS")) {
    options.reads = std::strcmp(text, "yes") == 0;
    if (!options.reads && std::strcmp(text, "no") != 0) return fault(EINVAL, "NUPA_CCL_READS is neither yes nor no");
  }
  return options;
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
  const ChannelLayout channels(ranks());
  const size_t channels_at = arena_bytes(options_.slot_bytes);
  // Ranks that check and ranks that do not would wait for each other: links refuse arenas of another length.
  const size_t bytes = channels_at + channels.bytes() + (options_.checks ? kPage : 0);
  auto arena = endpoint_->device().alloc_mr(endpoint_->pd(), bytes,
                                            access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead);
  if (!arena) return fault(arena.error().code, std::string("no memory for a communicator: ") + arena.error().what);
  arena_ = std::move(*arena);
  if (!topology_.is_one_memory()) {
    auto wires = WirePort::open(endpoint_->device(), [this](uint32_t rank) { on_end({ECONNRESET, rank}); });
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
  begin_observing();
  return {};
}

Communicator::~Communicator() = default;

Cause Communicator::ended() const {
  const auto* const head = static_cast<const ArenaHead*>(arena_->addr());
  return Cause::unpacked(head->ended.load(std::memory_order_acquire));
}

void Communicator::on_long_wait(const Wait& wait) {
  if (wait.rank != kNoRank) links_->probe(wait.rank);
}

Cause Communicator::on_timeout(const Wait& wait) {
  end({ETIMEDOUT, wait.rank});
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

bool Communicator::uses_memory() const { return topology_.is_one_memory() && ranks() <= options_.mapped_ranks; }

int Communicator::make_mapped_group() {
  for (const uint32_t rank : topology_.local) links_->want(rank);
  std::vector<std::byte*> arenas;
  for (const uint32_t rank : topology_.local) {
    if (rank != topology_.rank) {
      Steps steps = [](Wait wait) -> Steps { co_return co_await wait; }(links_->ready(rank));
      if (const int error = run_steps(steps, topology_.rules, *this, options_.limit_ns); error != 0) return error;
    }
    arenas.push_back(links_->arena_of(rank));
  }
  mapped_ = std::make_unique<MappedGroup>(topology_.local_index, std::move(arenas), topology_.local,
                                          options_.slot_bytes, topology_.rules);
  windows_ = std::make_unique<WindowCache>(endpoint_->allocations(), *links_, topology_.local_index, topology_.local);
  mapped_->set_windows(windows_.get());
  if (const int error = make_reads(); error != 0) return error;
  if (options_.algorithms.empty()) lines_ = mapped_.get();
  return 0;
}

int Communicator::make_reads() {
  std::vector<pid_t> processes;
  bool can = options_.reads;
  for (const uint32_t rank : topology_.local) {
    processes.push_back(static_cast<pid_t>(cards_[rank].process));
    can = can && cards_[rank].process_space != 0 && cards_[rank].process_space == cards_[topology_.rank].process_space;
  }
  reads_ = std::make_unique<ProcessReads>(std::move(processes), [this](uint32_t index) {
    on_end({ECONNRESET, topology_.local[index]});
  });
  for (uint32_t i = 0; can && i < topology_.local.size(); ++i) {
    std::byte seen;
    if (i != topology_.local_index)
      can = reads_->read(i, &seen, links_->arena_address_of(topology_.local[i]), sizeof seen) == 0;
  }
  size_t refused = can ? 0 : 1;
  Steps steps = mapped::agree_on_largest(*mapped_, refused, &refused);
  const int error = run_steps(steps, topology_.rules, *this, options_.limit_ns);
  if (error == 0 && refused == 0) mapped_->set_reads(reads_.get());
  return error;
}

void Communicator::make_lane_group() {
  std::vector<uint32_t> members(ranks());
  std::iota(members.begin(), members.end(), 0u);
  lanes_ = std::make_unique<LaneGroup>(rank(), std::move(members), *collective_ways_);
}

std::string Communicator::wanted(const Call& call) const {
  if (options_.algorithms.empty()) return "";
  const std::string key = std::string(name_of(call.operation)) + "=";
  size_t at = 0;
  while (at < options_.algorithms.size()) {
    const size_t end = std::min(options_.algorithms.find(',', at), options_.algorithms.size());
    const std::string one = options_.algorithms.substr(at, end - at);
    if (one.starts_with(key)) return one.substr(key.size());
    at = end + 1;
  }
  return "";
}

int Communicator::run_now(Call& call) {
  if (const Cause cause = ended(); cause) return cause.error;
  return is_observed() ? run_observed(call) : do_now(call);
}

int Communicator::do_now(const Call& call) {
  int error = 0;
  if (__builtin_expect(uses_memory(), 1)) {
    if (__builtin_expect(mapped_ == nullptr, 0))
      if (error = make_mapped_group(); error != 0) return error;
    const auto& algorithm = choose(call, *mapped_, wanted(call));
    algorithm_ = algorithm.name;
    Steps steps = algorithm.start(*mapped_, call);
    error = run_steps(steps, topology_.rules, *this, options_.limit_ns);
  } else {
    if (lanes_ == nullptr) make_lane_group();
    const auto& algorithm = choose(call, *lanes_, wanted(call));
    algorithm_ = algorithm.name;
    Steps steps = algorithm.start(*lanes_, call);
    error = run_steps(steps, topology_.rules, *this, options_.limit_ns);
  }
  // What one rank has stopped at, the others would wait for.
  if (__builtin_expect(error != 0, 0) && !ended()) end({error, rank()});
  return error;
}

int Communicator::run(Call& call) {
  if (__builtin_expect(executor_.try_take(), 1)) {
    const int error = run_now(call);
    executor_.give_back();
    return error;
  }
  auto job = start(std::move(call));
  return job ? wait(*job) : job.error().code;
}

int Communicator::run_line(const LineCall& call) {
  if (lines_ == nullptr || is_observed() || !executor_.try_take()) return kNotNow;
  int error = ended().error;
  if (error == 0) error = mapped::may_begin(*lines_, call) ? exchange_lines(call) : kNotNow;
  executor_.give_back();
  return error;
}

int Communicator::exchange_lines(const LineCall& call) {
  const mapped::Exchange exchange = mapped::begin_line(*lines_, call);
  if (!mapped::all_came(*lines_, exchange)) {
    Steps steps = mapped::until_all_came(*lines_, exchange);
    if (const int error = run_steps(steps, topology_.rules, *this, options_.limit_ns); error != 0) {
      if (!ended()) end({error, rank()});
      return error;
    }
  }
  mapped::end_line(*lines_, call, exchange);
  return 0;
}

Outcome<std::shared_ptr<Job>> Communicator::start(Call call) {
  auto job = std::make_shared<Task>(*this, std::move(call));
  if (const int error = executor_.add(job); error != 0) return fault(error, "no thread for a communicator");
  return job;
}

std::string Communicator::plan_of(const Call& call) {
  const auto text = [](const auto& one) { return std::string(one.name) + ": " + one.why; };
  if (!uses_memory()) {
    if (lanes_ == nullptr) make_lane_group();
    return text(choose(call, *lanes_, wanted(call)));
  }
  if (mapped_ == nullptr && make_mapped_group() != 0) return "";
  return text(choose(call, *mapped_, wanted(call)));
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
  const auto is_gone = survivors->agree([this] { return gone(); }, options_.limit_ns);
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
  void on_long_wait(const Wait& wait) override { communicator_.on_long_wait(wait); }
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
    if (mapped_ == nullptr && lanes_ == nullptr) make_lane_group();
    Steps all_here = mapped_ != nullptr ? mapped::barrier(*mapped_) : lanes::barrier(*lanes_);
    error = run_steps(all_here, topology_.rules, *this, options_.limit_ns);
  }
  if (error == 0) {
    // From here on whoever is gone has left: it had all that it needed.
    is_leaving_.store(true);
    Leaving around(*this);
    Steps steps = mapped_ != nullptr ? mapped::depart(*mapped_) : lanes::depart(*lanes_);
    error = run_steps(steps, topology_.rules, around, options_.limit_ns);
    if (error == ECONNRESET) error = 0;
  }
  executor_.give_back();
  return error;
}

}  // namespace nupa::ccl
