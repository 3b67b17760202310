// SPDX-License-Identifier: Apache-2.0
#include "capture/messages.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/clock.h"
#include "base/memory_fault.h"
#include "base/racing_copy.h"
#include "capture/classes.h"
#include "transport/roce/wire/wire.h"

namespace nupa::capture {

using roce::Operation;

namespace {

constexpr uint32_t kPsnMask = 0xffffff;
constexpr uint32_t kMostPieces = 34;              // 32 entries of a list, the headers and the trailer
constexpr uint32_t kManagementQkey = 0x80010000;  // IBTA 10.2.5

/// Gives the bytes of a list in portions.
class Walk {
 public:
  Walk(const base::Piece* pieces, uint32_t count) : pieces_(pieces), count_(count) {}
  /// Writes the pieces of the next `length` bytes. Returns their number.
  uint32_t next(uint64_t length, base::Piece* to) {
    uint32_t written = 0;
    while (length > 0 && at_ < count_) {
      const base::Piece& piece = pieces_[at_];
      const uint64_t part = std::min(length, piece.length - offset_);
      if (part > 0) to[written++] = {piece.data == nullptr ? nullptr : piece.data + offset_, part};
      length -= part;
      offset_ += part;
      if (offset_ != piece.length) continue;
      ++at_;
      offset_ = 0;
    }
    return written;
  }

 private:
  const base::Piece* pieces_;
  uint32_t count_;
  uint32_t at_ = 0;
  uint64_t offset_ = 0;
};

roce::Service service_of(QpType type) {
  switch (type) {
    case QpType::kUc:
      return roce::Service::kUc;
    case QpType::kUd:
      return roce::Service::kUd;
    case QpType::kXrcSend:
    case QpType::kXrcRecv:
      return roce::Service::kXrc;
    default:
      return roce::Service::kRc;
  }
}

bool is_reliable(QpType type) { return type != QpType::kUc && type != QpType::kUd; }

uint32_t packets_of(uint64_t length, uint32_t mtu) {
  return static_cast<uint32_t>(std::max<uint64_t>((length + mtu - 1) / mtu, 1));
}

/// The sequence numbers that a request takes: a READ has one for each packet of its response (IBTA 9.7.4.1).
uint32_t numbers_of(const Message& message, uint32_t mtu) {
  const bool is_divided =
      message.kind == MessageKind::kSend || message.kind == MessageKind::kWrite || message.kind == MessageKind::kRead;
  return is_divided ? packets_of(message.length, mtu) : 1;
}

class Recorder {
 public:
  Recorder(const Flow& flow, Direction direction) {
    const bool out = direction == Direction::kOutbound;
    // As an adapter's driver makes the port of a connection: it is the same for all packets of one direction.
    constexpr uint16_t kFirstPort = 0xc000;
    packet_.datagram = {.source = out ? flow.source : flow.destination,
                        .destination = out ? flow.destination : flow.source,
                        .source_port = static_cast<uint16_t>(kFirstPort | ((flow.qp ^ flow.dest_qpn) & 0x3fff)),
                        .destination_port = roce::kUdpPort,
                        .traffic_class = flow.traffic_class};
    packet_.transport = flow.transport;
    packet_.direction = direction;
    packet_.device = flow.device;
    packet_.qp = flow.qp;
    packet_.flags = frame_flag::kSynthetic | frame_flag::kKnownId;
    packet_.time_ns = base::now_ns();
  }

  /// `headers.payload_length` bytes of payload are the first of `pieces`.
  void record(const roce::Packet& headers, const base::Piece* pieces, uint32_t count) {
    std::byte start[roce::kMaxHeaderBytes];
    // The pad, and room for the CRC, which the reader computes.
    std::byte trailer[3 + roce::kIcrcBytes]{};
    base::Piece parts[kMostPieces];
    parts[0] = {start, roce::encode(headers, start)};
    std::copy_n(pieces, count, parts + 1);
    parts[count + 1] = {trailer, roce::pad_of(headers.payload_length) + roce::kIcrcBytes};
    capture::record(packet_, parts, count + 2);
  }

 private:
  Packet packet_;
};

/// The operation of a packet among those of a divided message.
Operation place_of(uint32_t index, uint32_t count, Operation only, Operation first, Operation middle, Operation last) {
  if (count == 1) return only;
  if (index == 0) return first;
  return index + 1 == count ? last : middle;
}

Operation send_operation(const Message& message, uint32_t index, uint32_t count) {
  const Operation only = message.has_immediate ? Operation::kSendOnlyImm
                         : message.invalidates ? Operation::kSendOnlyInv
                                               : Operation::kSendOnly;
  const Operation last = message.has_immediate ? Operation::kSendLastImm
                         : message.invalidates ? Operation::kSendLastInv
                                               : Operation::kSendLast;
  return place_of(index, count, only, Operation::kSendFirst, Operation::kSendMiddle, last);
}

Operation write_operation(const Message& message, uint32_t index, uint32_t count) {
  return place_of(index, count, message.has_immediate ? Operation::kWriteOnlyImm : Operation::kWriteOnly,
                  Operation::kWriteFirst, Operation::kWriteMiddle,
                  message.has_immediate ? Operation::kWriteLastImm : Operation::kWriteLast);
}

/// Records a message that is divided into packets, from sequence number `psn` on. `operation`: by index.
template <class OperationOf>
void record_divided(Recorder& recorder, const Flow& flow, const Message& message, roce::Packet headers,
                    OperationOf&& operation) {
  Walk walk(message.pieces, message.piece_count);
  const uint32_t count = packets_of(message.length, flow.mtu);
  uint64_t left = message.length;
  const bool solicited = headers.solicited;
  for (uint32_t i = 0; i < count; ++i) {
    const bool ends = i + 1 == count;
    headers.opcode = roce::opcode_of(service_of(flow.type), operation(i, count));
    headers.payload_length = static_cast<uint32_t>(std::min<uint64_t>(left, flow.mtu));
    headers.solicited = solicited && ends;
    headers.ack_request = ends && is_reliable(flow.type) && message.kind != MessageKind::kRead;
    base::Piece pieces[kMostPieces - 2];
    const uint32_t pieces_here = walk.next(headers.payload_length, pieces);
    recorder.record(headers, pieces, pieces_here);
    headers.psn = (headers.psn + 1) & kPsnMask;
    left -= headers.payload_length;
  }
}

uint64_t word_in(const Message& message) {
  uint64_t word = 0;
  Walk walk(message.pieces, message.piece_count);
  base::Piece pieces[kMostPieces];
  const uint32_t count = walk.next(sizeof word, pieces);
  auto* to = reinterpret_cast<std::byte*>(&word);
  for (uint32_t i = 0; i < count; to += pieces[i++].length) {
    const base::Piece& piece = pieces[i];
    if (piece.data != nullptr)
      base::try_access(piece.data, piece.length, [&] { base::copy_racing(to, piece.data, piece.length); });
  }
  return word;
}

uint8_t syndrome_of(Answer answer) {
  using roce::AckKind, roce::NakCode;
  const auto refused = [](NakCode code) { return roce::syndrome(AckKind::kNak, static_cast<uint8_t>(code)); };
  switch (answer) {
    case Answer::kNotReady:
      return roce::syndrome(AckKind::kRnrNak, 0);
    case Answer::kInvalidRequest:
      return refused(NakCode::kInvalidRequest);
    case Answer::kRemoteAccess:
      return refused(NakCode::kRemoteAccess);
    case Answer::kRemoteOperation:
      return refused(NakCode::kRemoteOperation);
    default:
      return roce::syndrome(AckKind::kAck, roce::kAckUnlimited);
  }
}

roce::Packet headers_of(const Flow& flow, const Message& message) {
  roce::Packet headers;
  headers.dest_qpn = flow.dest_qpn;
  headers.psn = flow.psn;
  headers.solicited = message.solicited;
  headers.address = message.address;
  headers.rkey = message.rkey;
  headers.length = static_cast<uint32_t>(message.length);
  headers.swap_or_add = message.swap_or_add;
  headers.compare = message.compare;
  headers.imm = message.imm_or_rkey;
  headers.invalidate = message.imm_or_rkey;
  headers.qkey = message.qkey;
  headers.source_qpn = flow.qp;
  headers.srqn = message.srqn;
  return headers;
}

}  // namespace

void record_request(Flow& flow, const Message& message) {
  Recorder recorder(flow, Direction::kOutbound);
  roce::Packet headers = headers_of(flow, message);
  const auto record_one = [&](Operation operation, const base::Piece* pieces, uint32_t count) {
    headers.opcode = roce::opcode_of(service_of(flow.type), operation);
    headers.ack_request = true;
    recorder.record(headers, pieces, count);
  };
  switch (message.kind) {
    case MessageKind::kSend:
      record_divided(recorder, flow, message, headers,
                     [&](uint32_t i, uint32_t count) { return send_operation(message, i, count); });
      break;
    case MessageKind::kWrite:
      record_divided(recorder, flow, message, headers,
                     [&](uint32_t i, uint32_t count) { return write_operation(message, i, count); });
      break;
    case MessageKind::kRead:
      record_one(Operation::kReadRequest, nullptr, 0);
      break;
    case MessageKind::kCompareSwap:
      record_one(Operation::kCompareSwap, nullptr, 0);
      break;
    case MessageKind::kFetchAdd:
      record_one(Operation::kFetchAdd, nullptr, 0);
      break;
    case MessageKind::kAtomicWrite: {
      headers.payload_length = headers.length = sizeof(uint64_t);
      // The word is in the list, or in the request itself.
      uint64_t word = message.piece_count != 0 ? word_in(message) : message.compare;
      const base::Piece piece{reinterpret_cast<std::byte*>(&word), sizeof word};
      record_one(Operation::kAtomicWrite, &piece, 1);
      break;
    }
    case MessageKind::kFlush:
      headers.flush = message.flush;
      headers.length = static_cast<uint32_t>(message.range);
      record_one(Operation::kFlush, nullptr, 0);
      break;
  }
  flow.psn = (flow.psn + numbers_of(message, flow.mtu)) & kPsnMask;
}

void record_answer(Flow& flow, const Message& message, Answer answer) {
  const uint32_t psn = flow.answer_psn;
  const uint32_t numbers = numbers_of(message, flow.mtu);
  flow.answer_psn = (psn + numbers) & kPsnMask;
  if (answer == Answer::kNone) return;
  const bool is_refusal = answer != Answer::kDone;
  Recorder recorder(flow, Direction::kInbound);
  roce::Packet headers;
  headers.dest_qpn = flow.qp;
  headers.psn = psn;
  headers.syndrome = syndrome_of(answer);
  if (!is_refusal) flow.msn = (flow.msn + 1) & kPsnMask;
  headers.msn = flow.msn;
  const bool is_atomic = message.kind == MessageKind::kCompareSwap || message.kind == MessageKind::kFetchAdd;
  // The response to a FLUSH is one to a READ without data (annex A19).
  const bool is_read = message.kind == MessageKind::kRead || message.kind == MessageKind::kFlush;
  if (is_refusal || (!is_read && !is_atomic)) {
    headers.opcode = roce::opcode_of(service_of(flow.type), Operation::kAcknowledge);
    if (!is_refusal) headers.psn = (psn + numbers - 1) & kPsnMask;
    recorder.record(headers, nullptr, 0);
  } else if (is_atomic) {
    headers.opcode = roce::opcode_of(service_of(flow.type), Operation::kAtomicAcknowledge);
    headers.found = word_in(message);
    recorder.record(headers, nullptr, 0);
  } else {
    record_divided(recorder, flow, message, headers, [](uint32_t i, uint32_t count) {
      return place_of(i, count, Operation::kReadResponseOnly, Operation::kReadResponseFirst,
                      Operation::kReadResponseMiddle, Operation::kReadResponseLast);
    });
  }
}

void record_mad(Flow& flow, const std::byte* bytes, uint32_t length) {
  flow.type = QpType::kUd;
  flow.qp = flow.dest_qpn = kManagementQpn;
  const base::Piece piece{const_cast<std::byte*>(bytes), length};
  Message message;
  message.qkey = kManagementQkey;
  message.pieces = &piece;
  message.piece_count = 1;
  message.length = length;
  record_request(flow, message);
}

}  // namespace nupa::capture
