// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A ring of cache lines with one writing and one reading host. It carries records: a header line, and the lines of its
/// payload. The lines belong to the writer, and the credit line belongs to the reader.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "transport/pool/medium/cache_policy.h"

namespace nupa::pool {

/// The content of a header line. Word 0 of the line holds the turn, the number of payload lines and the tag.
struct Header {
  static constexpr size_t kBytes = kLineBytes - sizeof(uint64_t);
  alignas(uint64_t) std::byte bytes[kBytes] = {};
  uint16_t payload_lines = 0;
  uint16_t tag = 0;  ///< for the user of the ring
};

namespace ring {

/// Copies what a Header holds, word by word: a processor that loads more than one store has just written waits until
/// the stores are in its cache.
[[gnu::always_inline]] inline void copy_words(void* to, const void* from) {
#pragma GCC unroll 8
  for (size_t at = 0; at < kLineBytes - sizeof(uint64_t); at += sizeof(uint64_t)) {
    uint64_t value;
    std::memcpy(&value, static_cast<const std::byte*>(from) + at, sizeof value);
    std::memcpy(static_cast<std::byte*>(to) + at, &value, sizeof value);
  }
}

/// Word 0 of a header line: the turn in the high half. The turn of a position is the number of times that the writer
/// has passed the line, beginning with 1, so that a line of an earlier turn is no header.
constexpr uint64_t word_of(uint32_t turn, uint16_t payload_lines, uint16_t tag) {
  return uint64_t{turn} << 32 | uint32_t{tag} << 16 | payload_lines;
}
constexpr uint32_t turn_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
constexpr uint16_t tag_of(uint64_t word) { return static_cast<uint16_t>(word >> 16); }
constexpr uint16_t payload_lines_of(uint64_t word) { return static_cast<uint16_t>(word); }
/// A turn is never 0: that is the content of a fresh or cleared line. A shift, because a division takes longer than a
/// look at the line. The turn after 2^32 - 1 is 1.
constexpr uint32_t turn_at(uint64_t position, uint32_t lines) {
  const uint64_t passed = position >> std::countr_zero(lines);
  return __builtin_expect(passed < UINT32_MAX, 1) ? static_cast<uint32_t>(passed) + 1
                                                  : static_cast<uint32_t>(passed % UINT32_MAX) + 1;
}
/// Longest record in lines. The reader reports after a quarter of the ring, so half of it is free at the latest then.
constexpr uint32_t longest_record(uint32_t lines) { return lines / 4; }

/// A set of lines of a ring. Only the constructor allocates memory.
class LineSet {
 public:
  explicit LineSet(uint32_t lines) : words_((lines + kWordBits - 1) / kWordBits) {}
  bool has(uint64_t line) const { return (words_[line / kWordBits] >> line % kWordBits & 1) != 0; }
  void remove(uint64_t line) { words_[line / kWordBits] &= ~(uint64_t{1} << line % kWordBits); }
  /// Adds the lines from `begin` to before `end`.
  void add(uint64_t begin, uint64_t end) {
    while (begin < end) {
      const uint64_t run = std::min(end - begin, kWordBits - begin % kWordBits);
      words_[begin / kWordBits] |= ~uint64_t{0} >> (kWordBits - run) << begin % kWordBits;
      begin += run;
    }
  }

 private:
  static constexpr uint64_t kWordBits = 64;
  std::vector<uint64_t> words_;
};

}  // namespace ring

/// The writer's end. `count`: a power of two, at least 16. The lines are zero in memory when the ring is new. Caches of
/// this host can still hold what an earlier ring had there, so the constructor invalidates the lines. Otherwise a line
/// that a cache evicts between two stores gets to memory with the header of the earlier ring.
template <CachePolicy Policy>
class RingWriter {
 public:
  RingWriter(Policy policy, Line* lines, uint32_t count, const Line* credit)
      : policy_(policy), lines_(lines), count_(count), mask_(count - 1), credit_(credit), held_payload_(count) {
    policy_.refresh(lines_, count_);
  }

  /// True if a record with so many payload lines fits now. Reads the credit line only if it has to.
  bool fits(uint16_t payload_lines) {
    const uint64_t end = position_ + 1 + payload_lines;
    if (end - consumed_ <= count_) return true;
    const uint64_t reported = policy_.poll(credit_);
    // The reader's host may write anything there. The reader has read no more than was written.
    if (reported > consumed_ && reported <= position_) consumed_ = reported;
    return end - consumed_ <= count_;
  }

  /// Stores payload of the next record, from byte `offset` of it, which is a multiple of kLineBytes.
  void store(uint64_t offset, const std::byte* from, uint64_t bytes) {
    uint64_t at = position_ + 1 + offset / kLineBytes;
    while (bytes > 0) {
      const uint64_t line = at & mask_;
      const uint64_t run = std::min(bytes, (count_ - line) * kLineBytes);
      policy_.store(lines_ + line, from, run);
      at += lines_of(run);
      from += run;
      bytes -= run;
    }
  }

  /// Publishes the next record, whose payload has been stored.
  void publish(const Header& header) {
    bool stored = header.payload_lines > 0;
    if (stored) {
      const uint64_t payload = (position_ + 1) & mask_;
      const uint64_t run = std::min<uint64_t>(header.payload_lines, count_ - payload);
      held_payload_.add(payload, payload + run);
      held_payload_.add(0, header.payload_lines - run);
    }
    const uint64_t next = (position_ + 1 + header.payload_lines) & mask_;
    // Payload of an earlier turn could look like the next header. If the next line has not been read yet, it is a
    // header.
    if (held_payload_.has(next)) {
      policy_.clear(lines_ + next);
      held_payload_.remove(next);
      stored = true;
    }
    if (stored) policy_.fence();
    Line line;
    line.words[0] = ring::word_of(ring::turn_at(position_, count_), header.payload_lines, header.tag);
    ring::copy_words(&line.words[1], header.bytes);
    policy_.publish(lines_ + (position_ & mask_), line);
    held_payload_.remove(position_ & mask_);
    position_ += 1 + uint64_t{header.payload_lines};
  }

 private:
  [[no_unique_address]] Policy policy_;
  Line* const lines_;
  const uint32_t count_;
  const uint64_t mask_;
  const Line* const credit_;
  uint64_t position_ = 0;       ///< line of the next header, counted from the beginning of the ring's life
  uint64_t consumed_ = 0;       ///< lines that the reader has reported
  ring::LineSet held_payload_;  ///< lines whose last content was payload
};

/// The reader's end. It trusts nothing in the lines: a length that the writer cannot have meant is a fault. It writes
/// the credit line, and the constructor invalidates it, as RingWriter does with the lines.
template <CachePolicy Policy>
class RingReader {
 public:
  RingReader(Policy policy, const Line* lines, uint32_t count, Line* credit)
      : policy_(policy), lines_(lines), count_(count), mask_(count - 1), credit_(credit) {
    policy_.refresh(credit_, 1);
  }

  enum class Look : uint8_t { kNothing, kRecord, kGarbage };
  /// Looks for the next record and copies its header. kGarbage: no writer that keeps the rules has written this.
  Look look(Header* header) {
    const Line* const line = lines_ + (position_ & mask_);
    const uint64_t word = policy_.poll(line);
    if (ring::turn_of(word) != ring::turn_at(position_, count_)) return Look::kNothing;
    const Line copy = policy_.read(line);
    header->payload_lines = ring::payload_lines_of(word);
    header->tag = ring::tag_of(word);
    if (copy.words[0] != word || header->payload_lines >= ring::longest_record(count_)) return Look::kGarbage;
    ring::copy_words(header->bytes, &copy.words[1]);
    payload_lines_ = header->payload_lines;
    if (payload_lines_ == 0) return Look::kRecord;
    const uint64_t begin = (position_ + 1) & mask_;
    const uint64_t run = std::min<uint64_t>(payload_lines_, count_ - begin);
    policy_.refresh(lines_ + begin, run);
    if (payload_lines_ > run) policy_.refresh(lines_, payload_lines_ - run);
    return Look::kRecord;
  }

  /// Copies payload of the record that look() has found. `offset + bytes` must not exceed its lines.
  void load(uint64_t offset, std::byte* to, uint64_t bytes) {
    const uint64_t ring_bytes = uint64_t{count_} * kLineBytes;
    uint64_t at = ((position_ + 1) * kLineBytes + offset) & (ring_bytes - 1);
    while (bytes > 0) {
      const uint64_t run = std::min(bytes, ring_bytes - at);
      policy_.load(to, reinterpret_cast<const std::byte*>(lines_) + at, run);
      at = 0;
      to += run;
      bytes -= run;
    }
  }

  /// The first `bytes` of the payload of the record that look() has found, where they lie: the second part is empty,
  /// unless the payload goes on at the beginning of the ring. Valid until pop(). The writer can change them at any
  /// time.
  std::array<std::span<const std::byte>, 2> payload(uint64_t bytes) const {
    const auto* const ring = reinterpret_cast<const std::byte*>(lines_);
    const uint64_t begin = ((position_ + 1) & mask_) * kLineBytes;
    const uint64_t run = std::min(bytes, uint64_t{count_} * kLineBytes - begin);
    return {std::span(ring + begin, run), std::span(ring, bytes - run)};
  }

  /// Goes on to the next record. The writer may use the lines again after a while.
  void pop() {
    pass();
    if (wants_report()) report();
  }
  /// The two parts of pop().
  void pass() {
    position_ += 1 + payload_lines_;
    payload_lines_ = 0;
  }
  bool wants_report() const { return position_ - reported_ >= count_ / 4; }

  /// Reports to the writer how far this end has read, for example before the reader sleeps.
  void report() {
    if (reported_ == position_) return;
    Line line;
    line.words[0] = reported_ = position_;
    policy_.publish(credit_, line);
  }

 private:
  [[no_unique_address]] Policy policy_;
  const Line* const lines_;
  const uint32_t count_;
  const uint64_t mask_;
  Line* const credit_;
  uint64_t position_ = 0;
  uint64_t reported_ = 0;
  uint32_t payload_lines_ = 0;  ///< of the record that look() has found
};

}  // namespace nupa::pool
