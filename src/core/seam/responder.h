// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The rules of the responder of a queue pair (IBTA 9.7, 9.8, 9.9.3, A14.5). They set the order in which a request is
/// checked, and the effects of each refusal on both sides. The rules are the same whether the requester's thread
/// applies them to a peer's shared tables (SharedTarget) or the target's own thread serves packets (ContextTarget).

#include <optional>

#include "base/fence.h"
#include "core/seam/qp_context.h"
#include "core/seam/relay.h"
#include "core/seam/request.h"
#include "host/agent.h"

namespace nupa::core {

/// The reasons why a target refuses a request.
enum class Refusal : uint8_t {
  kInvalidRequest,
  kRemoteAccess,
  kRemoteOperation,
  kReceiveTooSmall,
  kReceiveBuffer,
  kInvalidation,
};

/// The effects of a refusal on both sides (IBTA 9.9.3).
struct RefusalRule {
  WcStatus requester;               ///< final status of a reliable requester's request
  std::optional<EventType> event;   ///< raised at the target
  std::optional<WcStatus> receive;  ///< status of the taken receive; none: the receive is put back
  /// True: an unreliable service drops the message and continues. False: its target enters the error state like a
  /// reliable one, because the fault is its own. The requester sees no difference.
  bool unreliable_goes_on;
};

constexpr RefusalRule rule_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kInvalidRequest:
      return {WcStatus::kRemInvReqErr, EventType::kQpReqErr, std::nullopt, true};
    case Refusal::kRemoteAccess:
      return {WcStatus::kRemAccessErr, EventType::kQpAccessErr, std::nullopt, true};
    case Refusal::kRemoteOperation:
      return {WcStatus::kRemOpErr, EventType::kQpFatal, std::nullopt, true};
    case Refusal::kReceiveTooSmall:
      return {WcStatus::kRemInvReqErr, std::nullopt, WcStatus::kLocLenErr, true};
    case Refusal::kReceiveBuffer:
      return {WcStatus::kRemOpErr, EventType::kQpFatal, WcStatus::kLocProtErr, false};
    case Refusal::kInvalidation:
      return {WcStatus::kRemAccessErr, EventType::kQpAccessErr, WcStatus::kMwBindErr, false};
  }
  return {WcStatus::kRemOpErr, EventType::kQpFatal, std::nullopt, false};
}

/// The refusal for the status with which a relay's request has ended. nullopt: the far end does not answer, and the
/// peer's retries end the request.
constexpr std::optional<Refusal> relayed_refusal(WcStatus status) {
  switch (status) {
    case WcStatus::kRemInvReqErr:
      return Refusal::kInvalidRequest;
    case WcStatus::kRemAccessErr:
      return Refusal::kRemoteAccess;
    case WcStatus::kRetryExcErr:
    case WcStatus::kRnrRetryExcErr:
    case WcStatus::kWrFlushErr:
      return std::nullopt;
    default:
      return Refusal::kRemoteOperation;
  }
}

/// The result of a request, or of a part of one, at its target. It is one word, like Posted.
class Verdict {
 public:
  static constexpr Verdict accepted() { return Verdict(0); }
  /// A relay has taken the request. It must not be acknowledged before the relay reports its end.
  static constexpr Verdict taken() { return Verdict(kTaken); }
  /// No receive is posted, and nothing was changed.
  static constexpr Verdict not_ready() { return Verdict(kNotReady); }
  /// XRC: the process that may own the receive queue has not answered yet; nothing was changed.
  static constexpr Verdict later() { return Verdict(kLater); }
  /// The target's process died.
  static constexpr Verdict lost() { return Verdict(kLost); }
  /// The memory's owner, another process, has to copy and has not done so yet. Nothing is lost: the same call, made
  /// again with the same message, continues. The message keeps the receive that it has taken.
  static constexpr Verdict not_served() { return Verdict(kNotServed); }
  /// An unreliable service has dropped the message and continues.
  static constexpr Verdict dropped() { return Verdict(kDropped); }
  /// The target refused the request and is in the error state.
  static constexpr Verdict refused(Refusal refusal) { return Verdict(kRefused | static_cast<uint32_t>(refusal)); }

  constexpr bool is_accepted() const { return word_ == 0; }
  constexpr bool is_taken() const { return word_ == kTaken; }
  constexpr bool is_not_ready() const { return word_ == kNotReady; }
  constexpr bool is_later() const { return word_ == kLater; }
  constexpr bool is_lost() const { return word_ == kLost; }
  constexpr bool is_dropped() const { return word_ == kDropped; }
  constexpr bool is_not_served() const { return word_ == kNotServed; }
  constexpr bool is_refused() const { return (word_ & kRefused) != 0; }
  /// Valid after refused() only.
  constexpr Refusal refusal() const { return static_cast<Refusal>(word_ & 0xff); }

 private:
  static constexpr uint32_t kNotReady = 1, kLost = 2, kDropped = 3, kLater = 4, kNotServed = 5, kTaken = 6,
                            kRefused = 1u << 8;
  explicit constexpr Verdict(uint32_t word) : word_(word) {}
  uint32_t word_;
};

/// One part of a SEND. A whole message is both first and last.
struct SendPart {
  bool first;
  bool last;
  const Piece* pieces;
  uint32_t piece_count;
  uint64_t length;  ///< bytes of the pieces
  uint32_t srqn;    ///< XRC: the shared receive queue
  bool invalidates;
  uint32_t invalidated_rkey;
};

/// One part of an RDMA WRITE. A whole message is both first and last.
struct WritePart {
  bool first;
  bool last;
  bool has_immediate;  ///< last part only
  bool placed;         ///< the bytes are in place already: their packet arrived before its turn
  const Piece* pieces;
  uint32_t piece_count;
  uint64_t length;   ///< bytes of the pieces
  uint64_t total;    ///< bytes of the message
  uint64_t address;  ///< where the message begins
  uint32_t rkey;
  uint32_t srqn;  ///< XRC: the shared receive queue
};

/// A FLUSH (IBTA A19).
struct FlushPart {
  uint32_t flags;    ///< flush_flag bits
  uint64_t length;   ///< bytes of the range; not read with flush_flag::kRegion, and neither is `address`
  uint64_t address;  ///< where the range begins
  uint32_t rkey;
  uint32_t srqn;  ///< XRC: the shared receive queue
};

/// A target that may have a relay, which takes requests in the target's place.
template <class Target>
concept MayRelay = requires(Target& target) {
  target.relay();
};

/// Applies the rules to one target. No I/O and no allocation; one call at a time for one target. A target is one of
///   SharedTarget   tables and rings of a process of this host
///   ContextTarget  the core's side of a protocol engine's own queue pair
///
/// It has the functions select, resolve, resolves_later, may_flush, behind, write, atomic, take, put_back, room, place,
/// complete, abandon, invalidate and fail, as SharedTarget documents them. With a relay, requests go there:
/// Verdict::taken().
template <class Target>
class Responder {
 public:
  using Receive = typename Target::Receive;
  using Range = typename Target::Range;

  /// A message whose remaining parts have not arrived yet.
  struct Message {
    Receive receive{};
    uint64_t offset = 0;                ///< bytes that have arrived
    const std::byte* behind = nullptr;  ///< where the next bytes probably go, if asked for and known
    bool wants_behind = false;
  };

  /// `reliable`: the requester waits for an answer (not UC, not UD).
  Responder(Target& target, bool reliable) : target_(target), reliable_(reliable) {}

  /// `inbound`: the message as the receive's completion shows it; send() sets its byte_len.
  Verdict send(const SendPart& part, Inbound* inbound, Message* message) {
    if (Relay* const relay = this->relay(); relay != nullptr) [[unlikely]] {
      const Verdict verdict = relayed(relay->send(part, *inbound));
      if (verdict.is_accepted()) message->offset += part.length;
      return verdict;
    }
    if (part.first) {
      const Selection selection = target_.select(part.srqn);
      if (__builtin_expect(selection != Selection::kYes, 0)) return not_selected(selection, inbound, message);
      if (__builtin_expect(!message->receive, 1)) target_.take(&message->receive);
      if (__builtin_expect(!message->receive, 0)) return Verdict::not_ready();
    }
    if (__builtin_expect(message->offset + part.length > target_.room(message->receive), 0))
      return refuse(Refusal::kReceiveTooSmall, inbound, message);
    if (part.length > 0) {
      const WcStatus status = target_.place(message->receive, message->offset, part.pieces, part.piece_count,
                                            part.length, message->wants_behind ? &message->behind : nullptr);
      if (__builtin_expect(status != WcStatus::kSuccess, 0)) {
        if (status == host::kNotServedYet) return Verdict::not_served();
        if (status != WcStatus::kRetryExcErr) return refuse(Refusal::kReceiveBuffer, inbound, message);
        target_.abandon(message->receive);
        return Verdict::lost();
      }
    }
    message->offset += part.length;
    if (!part.last) return Verdict::accepted();
    if (__builtin_expect(part.invalidates && !target_.invalidate(part.invalidated_rkey), 0))
      return refuse(Refusal::kInvalidation, inbound, message);
    return complete(inbound, message);
  }

  Verdict write(const WritePart& part, Inbound* inbound, Message* message) {
    if (Relay* const relay = this->relay(); relay != nullptr) [[unlikely]] {
      const Verdict verdict = relayed(relay->write(part, *inbound));
      if (verdict.is_accepted()) message->offset += part.length;
      return verdict;
    }
    Range range{};
    Verdict verdict = check(part, message->offset, &range);
    if (__builtin_expect(!verdict.is_accepted(), 0))
      return verdict.is_refused() ? refuse(verdict.refusal(), inbound, message) : verdict;
    if (part.has_immediate) {
      target_.take(&message->receive);
      if (!message->receive) return Verdict::not_ready();
    }
    verdict = copy(part, range);
    if (__builtin_expect(!verdict.is_accepted(), 0)) {
      if (verdict.is_refused()) return refuse(verdict.refusal(), inbound, message);
      give_back(message);
      return verdict;
    }
    if (message->wants_behind && part.length > 0 && !part.placed) message->behind = target_.behind(range, part.length);
    message->offset += part.length;
    return part.has_immediate ? complete(inbound, message) : verdict;
  }

  /// Executes a whole WRITE without immediate data, which takes no receive: the same as write() with a part that is
  /// first and last. `pieces` have `length` bytes.
  [[gnu::always_inline]] Verdict write(uint32_t srqn, uint32_t rkey, uint64_t address, const Piece* pieces,
                                       uint32_t piece_count, uint64_t length) {
    if (Relay* const relay = this->relay(); relay != nullptr) [[unlikely]] {
      const WritePart whole{true, true, false, false, pieces, piece_count, length, length, address, rkey, srqn};
      return relayed(relay->write(whole, Inbound{}));
    }
    const Selection selection = target_.select(srqn);
    if (__builtin_expect(selection != Selection::kYes, 0))
      return selection == Selection::kLater ? Verdict::later() : refuse(Refusal::kInvalidRequest);
    if (__builtin_expect(length == 0, 0)) return Verdict::accepted();
    Range range{};
    if (__builtin_expect(!target_.resolve(rkey, address, length, access::kRemoteWrite, &range), 0))
      return refuse(Refusal::kRemoteAccess);
    const WcStatus status = target_.write(range, pieces, piece_count);
    return __builtin_expect(status == WcStatus::kSuccess, 1) ? Verdict::accepted() : not_written(status);
  }

  /// Checks a whole WRITE whose bytes the caller copies itself. `range`: set to their destination; the length is not 0.
  /// If the message has immediate data, write() with a `placed` part completes it after the copy.
  Verdict destination(const WritePart& part, Range* range) {
    const Verdict verdict = check(part, 0, range);
    return verdict.is_refused() ? refuse(verdict.refusal()) : verdict;
  }

  /// Checks a READ. `outstanding`: other READs and atomics that are not answered yet; at most `depth` are allowed.
  /// `range`: set to the location of the bytes if `length` is not 0.
  [[gnu::always_inline]] Verdict read(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length,
                                      uint32_t outstanding, uint32_t depth, Range* range) {
    const Selection selection = target_.select(srqn);
    if (selection == Selection::kLater) return Verdict::later();
    if (selection != Selection::kYes || outstanding >= depth) return refuse(Refusal::kInvalidRequest);
    if (Relay* const relay = this->relay(); relay != nullptr) [[unlikely]]
      return relayed(relay->read(rkey, address, length, &ticket_));
    if (length > 0 && !target_.resolve(rkey, address, length, access::kRemoteRead, range) && !target_.resolves_later())
      return refuse(Refusal::kRemoteAccess);
    return Verdict::accepted();
  }

  /// `operand` holds the compare, add or new value and receives the value found. ATOMIC_WRITE does not count against
  /// `depth`.
  Verdict atomic(AtomicOp op, uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t* operand, uint64_t swap,
                 uint32_t outstanding, uint32_t depth) {
    const bool too_deep = op != AtomicOp::kWrite && outstanding >= depth;
    const Selection selection = target_.select(srqn);
    if (__builtin_expect(selection != Selection::kYes || too_deep || address % kAtomicBytes != 0, 0))
      return selection == Selection::kLater ? Verdict::later() : refuse(Refusal::kInvalidRequest);
    if (Relay* const relay = this->relay(); relay != nullptr) [[unlikely]]
      return relayed(op == AtomicOp::kWrite ? relay->write_atomically(rkey, address, *operand)
                                            : relay->atomic(op, rkey, address, *operand, swap, &ticket_));
    const WcStatus status = target_.atomic(op, rkey, address, operand, swap);
    if (__builtin_expect(status == WcStatus::kSuccess, 1)) return Verdict::accepted();
    if (status == WcStatus::kRetryExcErr) return Verdict::lost();
    if (status == host::kNotServedYet) return Verdict::not_served();
    return refuse(status == WcStatus::kRemAccessErr   ? Refusal::kRemoteAccess
                  : status == WcStatus::kRemInvReqErr ? Refusal::kInvalidRequest
                                                      : Refusal::kRemoteOperation);
  }

  /// Executes a FLUSH: all earlier requests of the queue pair were executed. It does not count against `depth`, but
  /// needs one that is not 0.
  Verdict flush(const FlushPart& part, uint32_t depth) {
    const Selection selection = target_.select(part.srqn);
    if (selection == Selection::kLater) return Verdict::later();
    if (selection != Selection::kYes || depth == 0 || !is_flush(part.flags)) return refuse(Refusal::kInvalidRequest);
    if (Relay* const relay = this->relay(); relay != nullptr) [[unlikely]]
      return relayed(relay->flush(part, &ticket_));
    if (!target_.may_flush(part)) return refuse(Refusal::kRemoteAccess);
    base::fence_before_answer();
    return Verdict::accepted();
  }

  /// Null: the target itself serves requests.
  Relay* relay() const {
    if constexpr (MayRelay<Target>) return target_.relay();
    return nullptr;
  }
  /// The relay's ticket of the READ, atomic or FLUSH that was taken last.
  uint32_t ticket() const { return ticket_; }

  /// Refuses a request before any of it was executed, or while it was answered.
  [[gnu::noinline, gnu::cold]] Verdict refuse(Refusal refusal) {
    Message none;
    Inbound inbound;
    return refuse(refusal, &inbound, &none);
  }
  [[gnu::noinline, gnu::cold]] Verdict refuse(Refusal refusal, Inbound* inbound, Message* message) {
    const RefusalRule rule = rule_of(refusal);
    const bool goes_on = !reliable_ && rule.unreliable_goes_on;
    if (rule.receive && !goes_on && message->receive) {
      inbound->byte_len = 0;
      target_.complete(message->receive, *inbound, *rule.receive);
      message->receive = {};
    }
    give_back(message);
    if (goes_on) return Verdict::dropped();
    target_.fail(rule.event);
    return Verdict::refused(refusal);
  }

  /// Returns the receive of a message that will not be completed.
  void give_back(Message* message) {
    if (message->receive) target_.put_back(message->receive);
    message->receive = {};
  }

 private:
  [[gnu::noinline, gnu::cold]] Verdict not_selected(Selection selection, Inbound* inbound, Message* message) {
    return selection == Selection::kLater ? Verdict::later() : refuse(Refusal::kInvalidRequest, inbound, message);
  }

  /// Checks whether a part of a WRITE may be written, and where. It changes nothing: a refusal has no effect yet.
  Verdict check(const WritePart& part, uint64_t offset, Range* range) {
    if (const Selection selection = part.first ? target_.select(part.srqn) : Selection::kYes;
        __builtin_expect(selection != Selection::kYes, 0))
      return selection == Selection::kLater ? Verdict::later() : Verdict::refused(Refusal::kInvalidRequest);
    const uint64_t address = part.address + offset;
    // The first part is checked for the whole message, so that no part of a refused message is written.
    const bool is_whole = part.first && part.total == part.length;
    if (part.first && !is_whole && !target_.resolve(part.rkey, address, part.total, access::kRemoteWrite, range))
      return Verdict::refused(Refusal::kRemoteAccess);
    if (part.length > 0 && !part.placed &&
        __builtin_expect(!target_.resolve(part.rkey, address, part.length, access::kRemoteWrite, range), 0))
      return Verdict::refused(Refusal::kRemoteAccess);
    return Verdict::accepted();
  }

  Verdict relayed(Verdict verdict) { return verdict.is_refused() ? refuse(verdict.refusal()) : verdict; }

  Verdict copy(const WritePart& part, const Range& range) {
    if (part.length == 0 || part.placed) return Verdict::accepted();
    const WcStatus status = target_.write(range, part.pieces, part.piece_count);
    if (__builtin_expect(status == WcStatus::kSuccess, 1)) return Verdict::accepted();
    if (status == host::kNotServedYet) return Verdict::not_served();
    return status == WcStatus::kRetryExcErr ? Verdict::lost() : Verdict::refused(Refusal::kRemoteOperation);
  }

  [[gnu::noinline, gnu::cold]] Verdict not_written(WcStatus status) {
    if (status == host::kNotServedYet) return Verdict::not_served();
    return status == WcStatus::kRetryExcErr ? Verdict::lost() : refuse(Refusal::kRemoteOperation);
  }

  Verdict complete(Inbound* inbound, Message* message) {
    inbound->byte_len = static_cast<uint32_t>(message->offset);
    target_.complete(message->receive, *inbound, WcStatus::kSuccess);
    message->receive = {};
    return Verdict::accepted();
  }

  Target& target_;
  const bool reliable_;
  uint32_t ticket_ = 0;
};

/// A protocol engine's own queue pair as a target of Responder.
class ContextTarget {
 public:
  struct Receive {
    bool taken = false;
    explicit operator bool() const { return taken; }
  };
  struct Range {
    std::byte* at = nullptr;
  };

  explicit ContextTarget(QpContext& context) : context_(context), relay_(context.relay()) {}

  Relay* relay() const { return relay_; }

  Selection select(uint32_t srqn) {
    srqn_ = srqn;
    return context_.select(srqn);
  }
  bool resolve(uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights, Range* range) {
    range->at = context_.reach(srqn_, rkey, address, length, rights);
    return range->at != nullptr;
  }
  bool resolves_later() const { return context_.awaits_memory(); }
  bool may_flush(const FlushPart& part) {
    return context_.may_flush(srqn_, part.rkey, part.address, part.length, part.flags);
  }
  WcStatus write(const Range& range, const Piece* pieces, uint32_t count);
  static const std::byte* behind(const Range& range, uint64_t length) { return range.at + length; }
  WcStatus atomic(AtomicOp op, uint32_t rkey, uint64_t address, uint64_t* operand, uint64_t swap) {
    return context_.run_atomic(op, srqn_, rkey, address, operand, swap);
  }
  void take(Receive* receive) { receive->taken = context_.take_receive(); }
  void put_back(const Receive&) { context_.return_receive(); }
  uint64_t room(const Receive&) { return context_.receive_room(); }
  WcStatus place(const Receive&, uint64_t offset, const Piece* pieces, uint32_t count, uint64_t,
                 const std::byte** behind);
  void complete(const Receive&, const Inbound& message, WcStatus status) { context_.complete_receive(message, status); }
  void abandon(const Receive&) { context_.return_receive(); }
  bool invalidate(uint32_t rkey) { return context_.invalidate(rkey); }
  void fail(std::optional<EventType> event) { context_.refuse(event); }

 private:
  /// The status of a failed call that only returned false.
  WcStatus failure() const { return context_.awaits_memory() ? host::kNotServedYet : WcStatus::kRemOpErr; }

  QpContext& context_;
  Relay* const relay_;
  uint32_t srqn_ = 0;
};

}  // namespace nupa::core
