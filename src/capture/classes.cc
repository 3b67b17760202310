// SPDX-License-Identifier: Apache-2.0
#include "capture/classes.h"

#include "capture/ring.h"
#include "transport/roce/wire/wire.h"

namespace nupa::capture {
namespace {

uint32_t class_of(uint8_t opcode, uint32_t dest_qpn) {
  using namespace roce::trait;  // NOLINT: the lines below are unreadable otherwise
  const uint32_t traits = roce::traits_of(opcode);
  if (roce::service_of(opcode) == roce::Service::kUd && dest_qpn == kManagementQpn) return packet_class::kCm;
  if ((traits & kSend) != 0) return packet_class::kSend;
  if ((traits & kWrite) != 0) return packet_class::kWrite;
  if ((traits & kRead) != 0) return packet_class::kRead;
  if ((traits & kAtomic) != 0) return packet_class::kAtomic;
  if ((traits & (kAeth | kSelective)) != 0) return packet_class::kAck;
  return packet_class::kOther;
}

}  // namespace

PacketNames names_of(const std::byte* headers) {
  const uint32_t dest_qpn = roce::name_in(headers).dest_qpn;
  return {class_of(std::to_integer<uint8_t>(headers[0]), dest_qpn), dest_qpn};
}

}  // namespace nupa::capture
