// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/records.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/seam/grh.h"
#include "core/seam/request.h"

namespace nupa::pool {
namespace {

constexpr uint32_t kMax24Bits = 0xffffff;
constexpr uint32_t kKindBits = 5;
constexpr uint32_t kFlagBits = 5;

constexpr uint32_t bit(RecordKind kind) { return 1u << static_cast<uint32_t>(kind); }
constexpr uint32_t kWithParts =
    bit(RecordKind::kSend) | bit(RecordKind::kWrite) | bit(RecordKind::kReadAnswer) | bit(RecordKind::kPlaced);
constexpr bool has_parts(RecordKind kind) { return (bit(kind) & kWithParts) != 0; }

/// Bytes of the record that travel with it.
uint32_t payload_bytes(const Record& record) { return record.kind == RecordKind::kPlaced ? 0 : record.length; }

/// Values by kind. A look into a table takes less time than a jump.
using ByKind = std::array<uint8_t, kLastKind + 1>;
constexpr uint8_t& of(ByKind& table, RecordKind kind) { return table[static_cast<size_t>(kind)]; }
constexpr uint8_t of(const ByKind& table, RecordKind kind) { return table[static_cast<size_t>(kind)]; }

constexpr ByKind kOperandBytes = [] {
  ByKind bytes{};
  of(bytes, RecordKind::kWrite) = 12;
  of(bytes, RecordKind::kRead) = 16;
  of(bytes, RecordKind::kPlaced) = 20;
  of(bytes, RecordKind::kAtomic) = 33;
  of(bytes, RecordKind::kFlush) = 17;
  of(bytes, RecordKind::kGrant) = 32;
  of(bytes, RecordKind::kAtomicAnswer) = 8;
  of(bytes, RecordKind::kDatagram) = 4;
  of(bytes, RecordKind::kMad) = 4;
  of(bytes, RecordKind::kAskBack) = 4;
  return bytes;
}();

constexpr ByKind kFlagsAllowed = [] {
  using namespace record_flag;  // NOLINT: the table is unreadable otherwise
  ByKind flags{};
  of(flags, RecordKind::kSend) = kWhole | kImmediate | kInvalidate | kSolicited;
  of(flags, RecordKind::kWrite) = kWhole | kImmediate | kSolicited;
  of(flags, RecordKind::kPlaced) = kWhole | kImmediate | kSolicited;
  of(flags, RecordKind::kReadAnswer) = kWhole;
  of(flags, RecordKind::kDatagram) = kImmediate | kSolicited;
  return flags;
}();

/// Bytes of all fields of a record whose payload lies in the header line.
inline size_t field_bytes(const Record& record) {
  size_t bytes = kCommonBytes + of(kOperandBytes, record.kind);
  if (record.has(record_flag::kImmediate | record_flag::kInvalidate)) bytes += 4;
  if (record.is(record_trait::kXrc)) bytes += 4;
  if (has_parts(record.kind) && (record.flags & record_flag::kWhole) != record_flag::kWhole) bytes += 8;
  return bytes;
}

/// Writes a header in words of 8 bytes, as ring::copy_words() reads it.
class Writer {
 public:
  /// Behind the common fields, whose last word is not full yet.
  Writer(std::byte* to, uint64_t word, size_t filled) : to_(to), word_(word), filled_(filled) {}
  explicit Writer(std::byte* to) : to_(to) {}
  /// Writes the low bytes of `value`, 1 to 8 of them; the others are 0.
  void put(uint64_t value, size_t bytes) {
    word_ |= value << filled_;
    const size_t filled = filled_ + 8 * bytes;
    if (filled >= kBits) {
      store();
      word_ = filled == kBits ? 0 : value >> (kBits - filled_);
    }
    filled_ = filled % kBits;
  }
  void put(const std::byte* from, size_t bytes) {
    for (; bytes >= sizeof word_; bytes -= sizeof word_, from += sizeof word_) {
      uint64_t value;
      std::memcpy(&value, from, sizeof value);
      put(value, sizeof value);
    }
    for (; bytes > 0; --bytes) put(std::to_integer<uint64_t>(*from++), 1);
  }
  void finish() {
    if (filled_ > 0) store();
  }

 private:
  static constexpr size_t kBits = 64;
  void store() {
    std::memcpy(to_, &word_, sizeof word_);
    to_ += sizeof word_;
  }

  std::byte* to_;
  uint64_t word_ = 0;
  size_t filled_ = 0;  ///< bits of word_
};

/// Reads a header in the words that ring::copy_words() wrote.
class Reader {
 public:
  Reader(const std::byte* from, size_t at) : from_(from), at_(at) {}
  explicit Reader(const std::byte* from) : from_(from) {}
  uint64_t get(size_t bytes) {
    const size_t begin = at_ % sizeof(uint64_t);
    uint64_t value = word(at_ / sizeof(uint64_t)) >> 8 * begin;
    if (begin + bytes > sizeof value) value |= word(at_ / sizeof value + 1) << 8 * (sizeof value - begin);
    at_ += bytes;
    return bytes == sizeof value ? value : value & ((uint64_t{1} << 8 * bytes) - 1);
  }
  uint32_t get32() { return static_cast<uint32_t>(get(4)); }
  uint16_t get16() { return static_cast<uint16_t>(get(2)); }
  const std::byte* at() const { return from_ + at_; }

 private:
  uint64_t word(size_t index) const {
    uint64_t value;
    std::memcpy(&value, from_ + index * sizeof value, sizeof value);
    return value;
  }

  const std::byte* from_;
  size_t at_ = 0;
};

uint16_t tag_of(RecordKind kind, uint8_t flags, size_t inline_bytes) {
  return static_cast<uint16_t>(static_cast<uint32_t>(kind) | uint32_t{flags} << kKindBits |
                               static_cast<uint32_t>(inline_bytes) << (kKindBits + kFlagBits));
}

uint8_t flags_of(const Header& header) { return header.tag >> kKindBits & ((1u << kFlagBits) - 1); }
size_t inline_bytes_of(const Header& header) { return header.tag >> (kKindBits + kFlagBits); }

/// True for a whole SEND that has no more fields than each record. Small messages of this kind have to be fast.
inline bool is_plain_send(const Record& record) {
  constexpr uint8_t kMore = record_flag::kImmediate | record_flag::kInvalidate;
  return record.kind == RecordKind::kSend && (record.flags & (record_flag::kWhole | kMore)) == record_flag::kWhole &&
         !record.is(record_trait::kXrc);
}

/// The rules of each kind for the length of its payload.
bool has_right_length(const Record& record) {
  switch (record.kind) {
    case RecordKind::kPlaced:
      if (record.length > kMaxPartBytes) return false;
      [[fallthrough]];
    case RecordKind::kSend:
    case RecordKind::kWrite:
    case RecordKind::kReadAnswer: {
      const uint64_t end = uint64_t{record.offset} + record.length;
      if (record.total > core::kMaxMessage || end > record.total) return false;
      // Only an empty message has an empty part.
      if (record.length == 0 && record.total != 0) return false;
      return record.is_first() == (record.offset == 0) && record.is_last() == (end == record.total);
    }
    case RecordKind::kRead:
    case RecordKind::kFlush:
      return record.length == 0 && record.total <= core::kMaxMessage;
    case RecordKind::kDatagram:
      return record.length >= core::kGrhBytes && record.length <= kMaxDatagramBytes;
    case RecordKind::kMad:
      return record.length == kMadPayloadBytes;
    case RecordKind::kGrant:
      return record.length == 0 && record.grant != 0 && record.bytes != 0;
    case RecordKind::kAskBack:
      return record.length == 0 && record.grant != 0;
    default:
      return record.length == 0;
  }
}

bool read_operands(Reader& reader, Record* record) {
  switch (record->kind) {
    case RecordKind::kWrite:
      record->rkey = reader.get32();
      record->address = reader.get(8);
      return true;
    case RecordKind::kRead:
      record->rkey = reader.get32();
      record->address = reader.get(8);
      record->total = reader.get32();
      return true;
    case RecordKind::kPlaced:
      record->rkey = reader.get32();
      record->address = reader.get(8);
      record->length = reader.get32();
      record->grant = reader.get32();
      return true;
    case RecordKind::kGrant:
      record->grant = reader.get32();
      record->rkey = reader.get32();
      record->address = reader.get(8);
      record->bytes = reader.get(8);
      record->place = reader.get(8);
      return true;
    case RecordKind::kAskBack:
      record->grant = reader.get32();
      return true;
    case RecordKind::kAtomic: {
      const uint64_t operation = reader.get(1);
      if (operation > static_cast<uint64_t>(core::AtomicOp::kWrite)) return false;
      record->operation = static_cast<core::AtomicOp>(operation);
      record->rkey = reader.get32();
      record->address = reader.get(8);
      record->operand = reader.get(8);
      record->swap = reader.get(8);
      record->total = reader.get32();
      return true;
    }
    case RecordKind::kFlush:
      record->flush = static_cast<uint8_t>(reader.get(1));
      record->rkey = reader.get32();
      record->address = reader.get(8);
      record->total = reader.get32();
      return true;
    case RecordKind::kAtomicAnswer:
      record->operand = reader.get(8);
      return true;
    case RecordKind::kDatagram:
      record->qkey = reader.get32();
      return true;
    case RecordKind::kMad:
      record->from_port = reader.get16();
      record->to_port = reader.get16();
      return true;
    default:
      return true;
  }
}

void write_operands(const Record& record, Writer& writer) {
  switch (record.kind) {
    case RecordKind::kWrite:
      writer.put(record.rkey, 4);
      writer.put(record.address, 8);
      break;
    case RecordKind::kRead:
      writer.put(record.rkey, 4);
      writer.put(record.address, 8);
      writer.put(record.total, 4);
      break;
    case RecordKind::kPlaced:
      writer.put(record.rkey, 4);
      writer.put(record.address, 8);
      writer.put(record.length, 4);
      writer.put(record.grant, 4);
      break;
    case RecordKind::kGrant:
      writer.put(record.grant, 4);
      writer.put(record.rkey, 4);
      writer.put(record.address, 8);
      writer.put(record.bytes, 8);
      writer.put(record.place, 8);
      break;
    case RecordKind::kAskBack:
      writer.put(record.grant, 4);
      break;
    case RecordKind::kAtomic:
      writer.put(static_cast<uint64_t>(record.operation), 1);
      writer.put(record.rkey, 4);
      writer.put(record.address, 8);
      writer.put(record.operand, 8);
      writer.put(record.swap, 8);
      writer.put(record.total, 4);
      break;
    case RecordKind::kFlush:
      writer.put(record.flush, 1);
      writer.put(record.rkey, 4);
      writer.put(record.address, 8);
      writer.put(record.total, 4);
      break;
    case RecordKind::kAtomicAnswer:
      writer.put(record.operand, 8);
      break;
    case RecordKind::kDatagram:
      writer.put(record.qkey, 4);
      break;
    case RecordKind::kMad:
      writer.put(record.from_port, 2);
      writer.put(record.to_port, 2);
      break;
    default:
      break;
  }
}

}  // namespace

uint8_t credits_of(uint64_t receives) {
  const auto above = std::upper_bound(kCredits.begin(), kCredits.end(), receives);
  return static_cast<uint8_t>(above - kCredits.begin() - 1);
}

size_t inline_room(const Record& record) { return Header::kBytes - field_bytes(record); }

void encode(const Record& record, const std::byte* payload, Header* header) {
  const uint32_t length = payload_bytes(record);
  const bool behind = length > inline_room(record);
  header->payload_lines = behind ? static_cast<uint16_t>(lines_of(length)) : uint16_t{0};
  header->tag = tag_of(record.kind, record.flags, behind ? 0 : length);
  const uint64_t first =
      (record.qp_num & kMax24Bits) | uint64_t{record.source_qp & kMax24Bits} << 24 | uint64_t{record.sequence} << 48;
  std::memcpy(header->bytes, &first, sizeof first);
  const auto traits = static_cast<uint8_t>(record.traits | record.credits << 4);
  Writer writer(header->bytes + sizeof first, record.ack | uint32_t{traits} << 16, 8 * (kCommonBytes - sizeof first));
  if (behind) writer.put(length, 4);
  if (record.has(record_flag::kImmediate | record_flag::kInvalidate)) writer.put(record.immediate, 4);
  if (record.is(record_trait::kXrc)) writer.put(record.srqn, 4);
  write_operands(record, writer);
  if (has_parts(record.kind) && (record.flags & record_flag::kWhole) != record_flag::kWhole) {
    writer.put(record.offset, 4);
    writer.put(record.total, 4);
  }
  if (!behind) writer.put(payload, length);
  writer.finish();
}

std::optional<RecordKind> kind_of(const Header& header) {
  const uint32_t kind = header.tag & ((1u << kKindBits) - 1);
  if (kind == 0 || kind > kLastKind) return std::nullopt;
  return static_cast<RecordKind>(kind);
}

bool decode(const Header& header, Record* result) {
  const auto kind = kind_of(header);
  if (!kind || *kind == RecordKind::kAnswers) return false;
  Record& record = *result;
  record.kind = *kind;
  record.flags = flags_of(header);
  constexpr uint8_t kBoth = record_flag::kImmediate | record_flag::kInvalidate;
  if ((record.flags & ~of(kFlagsAllowed, *kind)) != 0 || (record.flags & kBoth) == kBoth) return false;
  uint64_t common[2];
  std::memcpy(common, header.bytes, sizeof common);
  record.qp_num = static_cast<uint32_t>(common[0]) & kMax24Bits;
  record.source_qp = static_cast<uint32_t>(common[0] >> 24) & kMax24Bits;
  record.sequence = static_cast<uint16_t>(common[0] >> 48);
  record.ack = static_cast<uint16_t>(common[1]);
  const auto traits = static_cast<uint8_t>(common[1] >> 16);
  Reader reader(header.bytes, kCommonBytes);
  record.traits = traits & 15;
  record.credits = traits >> 4;
  if (record.credits != 0 && !record.is(record_trait::kAcks)) return false;
  const size_t inline_bytes = inline_bytes_of(header);
  const bool behind = header.payload_lines > 0;
  if (is_plain_send(record) && !behind) {
    if (inline_bytes > kMaxInlineBytes) return false;
    record.length = record.total = static_cast<uint32_t>(inline_bytes);
    if (inline_bytes > 0) record.inlined = header.bytes + kCommonBytes;
    return true;
  }
  const size_t fields = field_bytes(record);
  // The longest record has fields of 47 bytes, so that the reads below stay in the header.
  if (behind ? inline_bytes != 0 || fields + 4 > Header::kBytes : fields + inline_bytes > Header::kBytes) return false;
  record.length = behind ? reader.get32() : static_cast<uint32_t>(inline_bytes);
  if (behind && (record.length > kMaxPartBytes || lines_of(record.length) != header.payload_lines)) return false;
  const uint32_t payload = record.length;
  // PLACED has its length among its operands.
  if (*kind == RecordKind::kPlaced && payload != 0) return false;
  if (record.has(kBoth)) record.immediate = reader.get32();
  if (record.is(record_trait::kXrc)) record.srqn = reader.get32();
  if (!read_operands(reader, &record)) return false;
  if (has_parts(*kind)) {
    const bool whole = (record.flags & record_flag::kWhole) == record_flag::kWhole;
    record.offset = whole ? 0 : reader.get32();
    record.total = whole ? record.length : reader.get32();
  }
  if (!has_right_length(record)) return false;
  if (!behind && payload > 0) record.inlined = reader.at();
  return true;
}

std::optional<Record> decode(const Header& header) {
  Record record;
  return decode(header, &record) ? std::optional(record) : std::nullopt;
}

Answer return_of(uint32_t qp_num, uint32_t grant) {
  return {qp_num, static_cast<uint16_t>(grant), Outcome::kReturned, 0, static_cast<uint16_t>(grant >> 16)};
}

uint32_t grant_of(const Answer& returned) { return returned.sequence | uint32_t{returned.part} << 16; }

uint64_t word_of(const Answer& answer) {
  return uint64_t{answer.qp_num & kMax24Bits} | uint64_t{answer.sequence} << 24 |
         static_cast<uint64_t>(answer.outcome) << 40 | uint64_t{answer.detail & 31u} << 44 |
         uint64_t{answer.part & (kParts - 1)} << 49;
}

std::optional<Answer> answer_of(uint64_t word) {
  Answer answer;
  answer.qp_num = static_cast<uint32_t>(word) & kMax24Bits;
  answer.sequence = static_cast<uint16_t>(word >> 24);
  const uint64_t outcome = word >> 40 & 15;
  answer.detail = static_cast<uint8_t>(word >> 44 & 31);
  answer.part = static_cast<uint16_t>(word >> 49);
  if (answer.qp_num == 0 || outcome > static_cast<uint64_t>(Outcome::kReturned)) return std::nullopt;
  answer.outcome = static_cast<Outcome>(outcome);
  if (answer.outcome == Outcome::kDone && answer.detail >= kCredits.size()) return std::nullopt;
  if (answer.outcome == Outcome::kRefused && answer.detail > static_cast<uint8_t>(core::Refusal::kInvalidation))
    return std::nullopt;
  return answer;
}

void encode_answers(std::span<const uint64_t> words, Header* header) {
  header->payload_lines = 0;
  header->tag = tag_of(RecordKind::kAnswers, 0, words.size() * sizeof(uint64_t));
  Writer writer(header->bytes);
  for (const uint64_t word : words) writer.put(word, sizeof word);
  writer.finish();
}

size_t decode_answers(const Header& header, Answer* answers) {
  const size_t bytes = inline_bytes_of(header);
  if (flags_of(header) != 0 || header.payload_lines != 0 || bytes == 0 || bytes % 8 != 0 || bytes > Header::kBytes)
    return 0;
  Reader reader(header.bytes);
  for (size_t i = 0; i < bytes / 8; ++i) {
    const auto answer = answer_of(reader.get(8));
    if (!answer) return 0;
    answers[i] = *answer;
  }
  return bytes / 8;
}

uint32_t part_bytes_of(uint32_t ring_lines) {
  const auto most = static_cast<uint32_t>((ring::longest_record(ring_lines) - 1) * kLineBytes);
  return std::min(kMaxPartBytes, std::bit_floor(most));
}

}  // namespace nupa::pool
