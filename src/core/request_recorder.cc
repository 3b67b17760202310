// SPDX-License-Identifier: Apache-2.0
#include "core/request_recorder.h"

#include <algorithm>

#include "core/seam/whole_message.h"

namespace nupa::core {
namespace {

using capture::Answer;
using capture::MessageKind;

MessageKind kind_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::kRdmaWrite:
    case Opcode::kRdmaWriteWithImm:
      return MessageKind::kWrite;
    case Opcode::kRdmaRead:
      return MessageKind::kRead;
    case Opcode::kCompareSwap:
      return MessageKind::kCompareSwap;
    case Opcode::kFetchAdd:
      return MessageKind::kFetchAdd;
    case Opcode::kAtomicWrite:
      return MessageKind::kAtomicWrite;
    case Opcode::kFlush:
      return MessageKind::kFlush;
    default:
      return MessageKind::kSend;
  }
}

Answer answer_of(WcStatus status) {
  switch (status) {
    case WcStatus::kSuccess:
      return Answer::kDone;
    case WcStatus::kRnrRetryExcErr:
      return Answer::kNotReady;
    case WcStatus::kRemInvReqErr:
      return Answer::kInvalidRequest;
    case WcStatus::kRemAccessErr:
      return Answer::kRemoteAccess;
    case WcStatus::kRemOpErr:
      return Answer::kRemoteOperation;
    default:
      return Answer::kNone;
  }
}

}  // namespace

capture::Flow flow_of(const DeviceEntry& device, const AddressVector& vector, QpType type, uint32_t number,
                      std::string_view transport) {
  capture::Flow flow;
  if (!device.gids.empty()) flow.source = device.gids[std::min<size_t>(vector.sgid_index, device.gids.size() - 1)].gid;
  flow.destination = vector.is_global ? vector.dgid : flow.source;
  flow.transport = transport;
  flow.device = device.index;
  flow.qp = number;
  flow.type = type;
  flow.traffic_class = vector.traffic_class;
  return flow;
}

capture::Message message_of(const SendWr& wr, const Piece* pieces, uint32_t count, uint64_t length) {
  const bool has_immediate = wr.opcode == Opcode::kSendWithImm || wr.opcode == Opcode::kRdmaWriteWithImm;
  capture::Message message;
  message.kind = kind_of(wr.opcode);
  message.has_immediate = has_immediate;
  message.invalidates = wr.opcode == Opcode::kSendWithInv;
  message.solicited = (wr.flags & send_flag::kSolicited) != 0;
  message.imm_or_rkey = wr.imm_or_rkey;
  message.rkey = wr.rkey;
  message.address = wr.remote_addr;
  message.swap_or_add = wr.opcode == Opcode::kCompareSwap ? wr.swap : wr.compare_add;
  message.compare = wr.compare_add;
  message.srqn = wr.remote_srqn;
  message.pieces = pieces;
  message.piece_count = count;
  message.length = length;
  if (wr.opcode == Opcode::kFlush) {
    const FlushPart flush = flush_of(wr);
    message.flush = flush.flags;
    message.address = flush.address;
    message.range = flush.length;
  }
  return message;
}

void RequestRecorder::posted(const Request& request) {
  if (is_local(request.wr.opcode) || request.fault != WcStatus::kSuccess) return;
  if (const uint32_t now = capture::number(); capture_ != now) {
    capture_ = now;
    first_ = request.position;
    flow_.psn = flow_.answer_psn = sq_psn_;
    flow_.msn = 0;
  }
  capture::record_request(flow_, message_of(request.wr, request.pieces, request.piece_count, request.length));
}

void RequestRecorder::ended(const capture::Message& message, uint32_t position, WcStatus status) {
  const bool was_recorded = capture_ == capture::number() && static_cast<int32_t>(position - first_) >= 0;
  if (was_recorded && flow_.type != QpType::kUc) capture::record_answer(flow_, message, answer_of(status));
}

}  // namespace nupa::core
