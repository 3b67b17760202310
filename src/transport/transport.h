#pragma once
/// A transport executes work requests that the core has checked. One endpoint stands behind one queue pair.

#include <cerrno>
#include <memory>

#include <nupa/queue_pair.h>
#include <nupa/result.h>
#include "cm/completion_port.h"
#include "segment/layout.h"

namespace nupa::transport {

/// What an atomic operation finds and leaves (IBTA 9.4.5).
constexpr uint64_t kAtomicBytes = 8;

/// A piece of this process's memory, already checked against its key. `data` null: a null region.
struct Piece {
  std::byte* data;
  uint64_t length;
};

/// One request, checked and translated by the core. Lives only during the call.
struct Request {
  const SendWr& wr;             ///< but its list is not to be read: `pieces` is what it names
  const AddressVector* vector;  ///< UD
  const Piece* pieces;
  uint32_t piece_count;
  uint64_t length;  ///< of all pieces together
};

enum class Verdict : uint8_t {
  kDone,      ///< completed, well or not: see status
  kNotReady,  ///< the receiver has no receive posted (RNR): try again
  kNoAnswer,  ///< the peer cannot be reached or does not take requests yet: try again
};

/// One word, because it is returned once a message: a structure of bytes and words is written in parts and read as a
/// whole, for which processors wait.
class Outcome {
 public:
  static constexpr Outcome done(WcStatus status) { return Outcome(Verdict::kDone, static_cast<uint32_t>(status)); }
  /// `rnr_timer`: the receiver's timer code (IBTA table 45).
  static constexpr Outcome not_ready(uint32_t rnr_timer) { return Outcome(Verdict::kNotReady, rnr_timer & 0x1f); }
  static constexpr Outcome no_answer() { return Outcome(Verdict::kNoAnswer, 0); }

  constexpr Verdict verdict() const { return static_cast<Verdict>(word_ >> 8); }
  constexpr bool succeeded() const { return word_ == 0; }
  /// Of kDone.
  constexpr WcStatus status() const { return static_cast<WcStatus>(word_ & 0xff); }
  /// Of kNotReady.
  constexpr uint32_t rnr_timer() const { return word_ & 0xff; }

 private:
  constexpr Outcome(Verdict verdict, uint32_t detail) : word_(static_cast<uint32_t>(verdict) << 8 | detail) {}
  uint32_t word_;
};
static_assert(static_cast<uint32_t>(Verdict::kDone) == 0 && static_cast<uint32_t>(WcStatus::kSuccess) == 0);

/// What an endpoint knows of the queue pair it serves.
struct LocalQp {
  segment::QpShared* shared;
  uint32_t qp_num;
  QpType type;
  bool hears_itself;  ///< gets its own datagrams to groups that it is a member of
};

/// All calls of one endpoint are made with the queue pair's send lock held.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  /// The core raises `due` once the request has its own completion, whatever the outcome.
  virtual Outcome execute(const Request& request) = 0;
  cm::DueEvent due;
  /// Looks for the other end if it is not known yet. kGone: it should be on this host, and is not.
  enum class Reach : uint8_t { kMet, kUnknown, kGone };
  virtual Reach reach() = 0;
  /// The process that it leads to, once that is met. Null: not met yet, or it leads to many.
  virtual const cm::Peer* peer() const { return nullptr; }
  /// As QueuePair::map_remote().
  virtual Result<std::shared_ptr<std::byte>> map_remote([[maybe_unused]] uint32_t rkey,
                                                        [[maybe_unused]] uint64_t address,
                                                        [[maybe_unused]] uint64_t length,
                                                        [[maybe_unused]] uint32_t rights) {
    return fail(ENOTSUP, "the transport maps nothing");
  }
  /// A line for people: where the other end is ("shm", "slot 3").
  virtual const char* name() const = 0;
  /// Without the send lock, before it is destroyed: no thread of the transport touches it after this.
  virtual void withdraw() {}
};

/// The requester of a queue pair whose requests are done later: packets carry them, answers complete them. Calls are
/// made with the queue pair's send lock held, unless something else is said.
class WireEndpoint {
 public:
  virtual ~WireEndpoint() = default;
  /// Takes a request of a kind and size that the queue pair has. Faults of its list end it in its turn.
  virtual void post(const SendWr& wr, uint32_t position) = 0;
  /// What was posted leaves, as far as it may.
  virtual void send() = 0;
  /// The queue pair goes to RTS: its first packet has number `sq_psn`, or, if it was there before, the next one.
  virtual void start(uint32_t sq_psn) = 0;
  /// Timers, retries and limits of `attr` hold from now on.
  virtual void set_attributes(const QpAttr& attr) = 0;
  /// SQD: nothing new is started.
  virtual void pause(bool paused) = 0;
  /// While paused: nothing is under way any more. May be asked while a request completes.
  virtual bool drained() const = 0;
  /// What waits is completed as flushed; so is what is posted before the next start().
  virtual void flush() = 0;
  /// The error state: as flush(), and nothing is received any more.
  virtual void stop() = 0;
  /// Without the send lock, before it is destroyed: no thread of the transport calls it after this.
  virtual void withdraw() = 0;
  virtual const char* name() const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// Connected types: `vector` and `remote_qpn` name the other end, that need not exist yet. UD: both unused.
  virtual Result<std::unique_ptr<Endpoint>> connect(const LocalQp& qp, const AddressVector& vector,
                                                    uint32_t remote_qpn) = 0;
};

}  // namespace nupa::transport
