// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <vector>

#include <nupa/types.h>
#include "transport/roce/protocol/host.h"

namespace nupa::roce {

/// A local address that packets of a connection may leave from.
struct Rail {
  Gid address;
  uint32_t interface_index = 0;  ///< interface to send by, 0: as the routes determine
  uint16_t port = 0;             ///< UDP source port of its packets
  uint32_t socket = 0;           ///< index of the port's socket that sends
};

/// The handshake: on the first path, two NUPA processes send each other the addresses of a connection's paths. Path i
/// goes from rail i of one side to rail i of the other. The side with fewer rails repeats them in order, so that both
/// sides number the paths alike.
///
///   flags(8): 1 the sender knows the receiver's rails, 2 it accepts packets without CRC | count(8) | 0(16) | count
///   times: address(128) port(16) 0(16)
class Handshake {
 public:
  /// `mine`: 1 to kMaxPaths; the first is that of the connection. `takes_unchecked`: this side omits the invariant CRC
  /// if the other side does, too.
  explicit Handshake(std::vector<Rail> mine, bool takes_unchecked = false);

  /// The peer is NUPA, and may have several rails.
  void start() { started_ = true; }
  /// Handles a packet with kHandshake. It is ignored if an address has another family or is a group's. Returns true
  /// if paths() has grown.
  bool receive(const Packet& packet);
  /// Sends what is due. `packet`: holds the common fields.
  void transmit(int64_t now, Packet packet, Output& output);
  bool has_output(int64_t now) const { return now >= deadline(); }
  /// When there is something to send; INT64_MAX: never.
  int64_t deadline() const;

  /// 1 until both sides have each other's rails.
  uint32_t paths() const { return paths_; }
  /// True if both sides omit the CRC.
  bool unchecked() const { return takes_unchecked_ && they_take_unchecked_; }
  const Rail& mine(uint32_t path) const { return mine_[path % mine_.size()]; }
  const Rail& theirs(uint32_t path) const { return theirs_[path % theirs_.size()]; }

 private:
  std::vector<Rail> mine_;
  std::vector<Rail> theirs_;
  uint32_t paths_ = 1;
  const bool takes_unchecked_;
  bool they_take_unchecked_ = false;
  bool started_ = false;
  bool known_ = false;  ///< the peer has these rails
  bool asked_ = false;  ///< the peer requests them
  uint32_t tries_ = 0;
  int64_t next_ns_ = 0;
  std::array<std::byte, 4 + kMaxPaths * 20> bytes_{};  ///< payload of the packet that is being sent
};

}  // namespace nupa::roce
