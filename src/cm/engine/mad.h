// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The management datagrams of the communication manager (IBTA volume 1, 12.6 and 12.11): 256 bytes, of which the first
/// 24 are the common header. Offsets below count from there; all numbers are in network byte order.
///
///     header    version(8) class 7(8) class version 2(8) method 3(8) | status(16) specific(16) | transaction(64) |
///               attribute(16) reserved(16) | modifier(32)
///     REQ       0 local id, 8 service, 16 CA GUID, 28 Q_Key, 32 QPN(24) resources(8), 36 EECN(24) depth(8),
///               40 remote EECN(24) remote response timeout(5) service type(2) flow control(1), 44 PSN(24)
///               local response timeout(5) retries(3), 48 P_Key(16) MTU(4) RDC(1) RNR retries(3) CM retries(4) SRQ(1)
///               extended type(3), 52 primary path, 96 alternate path, 140 private data(92)
///     path      0 local LID, 2 remote LID, 4 local GID, 20 remote GID, 36 flow label(20) reserved(6) rate(6),
///               40 traffic class, 41 hop limit, 42 SL(4) subnet local(1), 43 ack timeout(5)
///     MRA       0 local id, 4 remote id, 8 message(2), 9 service timeout(5), 10 private data(222)
///     REJ       0 local id, 4 remote id, 8 message(2), 9 length of information(7), 10 reason(16), 12 information(72),
///               84 private data(148)
///     REP       0 local id, 4 remote id, 8 Q_Key, 12 QPN(24), 16 EECN(24), 20 PSN(24), 24 resources, 25 depth,
///               26 target ack delay(5) failover(2) flow control(1), 27 RNR retries(3) SRQ(1), 28 CA GUID,
///               36 private data(196)
///     RTU, DREP 0 local id, 4 remote id, 8 private data(224)
///     DREQ      0 local id, 4 remote id, 8 remote QPN(24), 12 private data(220)
///     SIDR_REQ  0 request id, 4 P_Key(16), 8 service, 16 private data(216)
///     SIDR_REP  0 request id, 4 status, 5 length of information, 8 QPN(24), 12 service, 20 Q_Key, 24 information(72),
///               96 private data(136)
///     LAP       0 local id, 4 remote id, ...         APR  0 local id, 4 remote id, 8 length, 9 status

#include <nupa/connection_manager.h>

#include <optional>

namespace nupa::cm {

using Mad = std::array<std::byte, 256>;

/// IBTA table 105.
enum class Attribute : uint16_t {
  kReq = 0x10,
  kMra = 0x11,
  kRej = 0x12,
  kRep = 0x13,
  kRtu = 0x14,
  kDreq = 0x15,
  kDrep = 0x16,
  kSidrReq = 0x17,
  kSidrRep = 0x18,
  kLap = 0x19,
  kApr = 0x1a,
};

/// The message that an MRA or REJ answers (IBTA tables 107 and 108).
enum class Answered : uint8_t { kReq = 0, kRep = 1, kOther = 2 };

/// The fields that all messages have. The request id of SIDR messages is in `local_id` of a SIDR_REQ and in `remote_id`
/// of a SIDR_REP, since it belongs to the receiver of the SIDR_REP.
struct Envelope {
  Attribute attribute = Attribute::kReq;
  uint64_t transaction = 0;
  uint32_t local_id = 0;   ///< the sender's
  uint32_t remote_id = 0;  ///< the receiver's
};

struct Delay {
  Answered answered = Answered::kReq;
  uint8_t service_timeout = 0;  ///< 4.096 us times 2 to the power of this value
};
struct Rejection {
  Answered answered = Answered::kReq;
  uint16_t reason = 0;
  uint64_t ca_guid = 0;  ///< the sender's GUID, from the additional information with RejectReason::kTimeout
  PrivateData<148> private_data;
};
struct Readiness {
  PrivateData<224> private_data;
};
struct Disconnection {
  uint32_t remote_qpn = 0;
};
/// The status of an APR (IBTA table 117).
struct PathAnswer {
  uint8_t status = 0;
};
constexpr uint8_t kPathUnknownConnection = 1;
constexpr uint8_t kPathUnsupported = 2;

/// Reads the common fields. Returns nothing if the class, the version or the attribute is unknown.
std::optional<Envelope> read_envelope(const Mad& mad);

Mad write(const Envelope& envelope, const ConnectionRequest& request);
Mad write(const Envelope& envelope, const ConnectionReply& reply);
Mad write(const Envelope& envelope, const Delay& delay);
Mad write(const Envelope& envelope, const Rejection& rejection);
Mad write(const Envelope& envelope, const Readiness& readiness);
Mad write(const Envelope& envelope, const Disconnection& disconnection);
Mad write(const Envelope& envelope, const PathAnswer& answer);
Mad write(const Envelope& envelope, const DatagramRequest& request);
/// The answer repeats `service_id`.
Mad write(const Envelope& envelope, const DatagramReply& reply, uint64_t service_id);

// Each function reads a message of the kind that its envelope names. The path of a request is returned as the receiver
// sees it.
/// Returns nothing for an unknown transport service.
std::optional<ConnectionRequest> read_request(const Mad& mad);
ConnectionReply read_reply(const Mad& mad);
Delay read_delay(const Mad& mad);
Rejection read_rejection(const Mad& mad);
Readiness read_readiness(const Mad& mad);
DatagramRequest read_datagram_request(const Mad& mad);
DatagramReply read_datagram_reply(const Mad& mad);
/// Returns the service of a SIDR_REP.
uint64_t read_service(const Mad& mad);

}  // namespace nupa::cm
