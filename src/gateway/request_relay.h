// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/queue_pair.h>

#include <deque>
#include <functional>
#include <optional>
#include <span>

#include "core/seam/relay.h"
#include "core/seam/responder.h"

namespace nupa::gateway {

/// Positions in a ring of bytes. They only grow; the place of a position is its remainder.
struct RingPositions {
  uint64_t capacity = 0;  ///< bytes; whole pages
  uint64_t head = 0;      ///< behind the newest byte
  uint64_t tail = 0;      ///< the oldest byte in use
  uint64_t room() const { return capacity - (head - tail); }
  uint64_t place(uint64_t position) const { return position % capacity; }
  /// An empty ring starts again at its beginning, so that a light load touches few pages.
  void rewind() {
    if (head == tail) head = tail = 0;
  }
};

/// The requests of one peer on their way to the other side. It keeps their bytes until they have ended there, and the
/// bytes of answers until they were sent. All calls are made with the send lock of the peer's queue pair held.
class RequestRelay final : public core::Relay {
 public:
  /// Longest part of a WRITE or READ, bytes.
  static constexpr uint32_t kPartBytes = 64u << 10;
  /// READs, atomics and FLUSH requests under way: as many as the peer may have outstanding, and repeated ones.
  static constexpr uint32_t kMostReads = 128;

  /// A request to post at the other side. Its bytes lie in the memory of the relay, at `place`.
  struct Part {
    Opcode opcode = Opcode::kSend;
    bool solicited = false;
    bool ends = false;        ///< the last part of a SEND, WRITE or ATOMIC_WRITE
    bool has_answer = false;  ///< a READ, an atomic or a FLUSH
    uint32_t imm_or_rkey = 0;
    uint32_t rkey = 0;
    uint32_t ticket = 0;  ///< with an answer
    uint32_t length = 0;  ///< bytes
    uint64_t address = 0;
    uint64_t position = 0;  ///< of its bytes in the ring of requests or of answers
    uint64_t compare_add = 0;
    uint64_t swap = 0;
  };

  /// `memory`: two rings of `window` bytes each, for requests and for answers. `window`: a multiple of a page, at least
  /// twice kPartBytes. `on_work`: there is something for next(); called with the send lock held.
  RequestRelay(std::byte* memory, uint64_t window, std::function<void()> on_work);

  // core::Relay
  core::Verdict send(const core::SendPart& part, const core::Inbound& message) override;
  core::Verdict write(const core::WritePart& part, const core::Inbound& message) override;
  core::Verdict write_atomically(uint32_t rkey, uint64_t address, uint64_t value) override;
  core::Verdict read(uint32_t rkey, uint64_t address, uint64_t length, uint32_t* ticket) override;
  core::Verdict atomic(core::AtomicOp op, uint32_t rkey, uint64_t address, uint64_t operand, uint64_t swap,
                       uint32_t* ticket) override;
  core::Verdict flush(const core::FlushPart& part, uint32_t* ticket) override;
  Endings endings() const override { return endings_; }
  Fetched fetch(uint32_t ticket, uint64_t offset, uint32_t length) override;
  void release(uint32_t ticket) override;

  // The other side.
  /// The next part to post, in order. Nothing: none is there, or the ring of answers is full.
  std::optional<Part> next();
  /// The pieces of a part's bytes: one, or two around the end of the ring. Returns their number; 0 without bytes.
  int pieces_of(const Part& part, std::span<Sge, 2> pieces, uint32_t lkey) const;
  /// The oldest part that next() returned has ended.
  void end(const Part& part, WcStatus status);
  /// Notes whether the other side waits for a receive. Returns true if that has changed.
  bool note_waiting(bool awaits_receive);

 private:
  /// A READ, an atomic or a FLUSH.
  struct Asked {
    Part request;  ///< with the length of the whole READ
    uint64_t length = 0;
    uint64_t posted = 0;  ///< bytes asked for
    uint64_t arrived = 0;
    uint64_t base = 0;         ///< position of its first byte, once the first part was posted
    uint32_t under_way = 0;    ///< parts
    bool is_placed = false;    ///< it has its place in the ring
    bool is_complete = false;  ///< all bytes have arrived
    bool is_released = false;
    WcStatus status = WcStatus::kSuccess;
  };
  /// The message that arrives.
  struct Arriving {
    uint64_t begin = 0;  ///< position of the first byte that no part has yet
    uint64_t sent = 0;   ///< bytes in parts
    uint32_t staged = 0;
  };

  bool is_full() const { return taken_ - endings_.count >= core::kMostRelayed; }
  void copy_in(const core::Piece* pieces, uint32_t count);
  void push(const Part& part);
  core::Verdict ask(const Part& request, uint64_t length, uint32_t* ticket);
  Asked* find(uint32_t ticket);
  std::optional<Part> next_of(Asked& asked);
  bool take_place(Asked& asked, uint64_t bytes);
  void drop_released();

  std::byte* const memory_;
  const std::function<void()> on_work_;
  RingPositions requests_;
  RingPositions answers_;
  Arriving arriving_;
  std::deque<Part> waiting_;   ///< for next(); an answer stands there once, however long it is
  std::deque<Asked> asked_;    ///< by ticket, without gaps
  uint32_t first_ticket_ = 0;  ///< of asked_.front()
  uint64_t taken_ = 0;         ///< SENDs, WRITEs and ATOMIC_WRITEs
  bool has_failed_ = false;    ///< the first failure was recorded; later ones are its consequences
  Endings endings_;
};

}  // namespace nupa::gateway
