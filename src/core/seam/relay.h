// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A relay takes the requests of a queue pair's peer in place of this process's memory and receives. It passes them on,
/// and reports how they ended (docs/design/gateway.md).

#include <nupa/types.h>

#include <cstddef>
#include <cstdint>

namespace nupa::core {

class Verdict;
struct Inbound;
struct SendPart;
struct WritePart;
struct FlushPart;
enum class AtomicOp : uint8_t;

/// The most requests of one queue pair that a relay takes before their answers.
constexpr uint32_t kMostRelayed = 256;

/// The relay of one queue pair. Calls are made with that queue pair's send lock held, by core::Responder and by the
/// endpoint that serves the peer. No call waits.
///
/// An endpoint whose call returned Verdict::taken() must not acknowledge the request before the relay reports its end.
/// Endpoint::answer() is called after something has changed.
class Relay {
 public:
  virtual ~Relay() = default;

  /// Takes a part of a message, in order. The last part: taken(); the others: accepted(). not_served(): there is no
  /// room now, nothing was changed, and the caller repeats the call. refused(): only if no other request is under way.
  virtual Verdict send(const SendPart& part, const Inbound& message) = 0;
  virtual Verdict write(const WritePart& part, const Inbound& message) = 0;
  /// ATOMIC_WRITE: taken() or not_served().
  virtual Verdict write_atomically(uint32_t rkey, uint64_t address, uint64_t value) = 0;
  /// Takes a READ. taken(), with a ticket for fetch(); or not_served().
  virtual Verdict read(uint32_t rkey, uint64_t address, uint64_t length, uint32_t* ticket) = 0;
  /// Takes a compare-and-swap (`operand`: the value to compare with) or a fetch-and-add (`operand`: the value to add).
  /// The value found is 8 bytes for fetch(). taken() or not_served().
  virtual Verdict atomic(AtomicOp op, uint32_t rkey, uint64_t address, uint64_t operand, uint64_t swap,
                         uint32_t* ticket) = 0;
  /// Takes a FLUSH, whose answer has no bytes. As read().
  virtual Verdict flush(const FlushPart& part, uint32_t* ticket) = 0;

  /// How SENDs, WRITEs and ATOMIC_WRITEs ended. They end in the order in which they were taken.
  struct Endings {
    uint64_t count = 0;                  ///< how many have ended with success since the beginning
    WcStatus next = WcStatus::kSuccess;  ///< the status with which the next one has failed; kSuccess: it is under way
    bool awaits_receive = false;         ///< the target of the next one has no receive at the moment
  };
  virtual Endings endings() const = 0;

  /// Bytes of an answer. All earlier requests have ended when kReady or kFailed is returned.
  struct Fetched {
    enum class State : uint8_t { kReady, kLater, kFailed };
    State state = State::kLater;
    const std::byte* data = nullptr;       ///< kReady: valid until the next call with a larger offset, or release()
    WcStatus status = WcStatus::kSuccess;  ///< kFailed
  };
  /// Returns `length` bytes of the answer from `offset` on, at most one packet. The offsets of one ticket grow.
  virtual Fetched fetch(uint32_t ticket, uint64_t offset, uint32_t length) = 0;
  /// The answer is not needed any more.
  virtual void release(uint32_t ticket) = 0;
};

}  // namespace nupa::core
