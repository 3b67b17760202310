#pragma once
#include <array>
#include <vector>

#include <nupa/types.h>
#include "transport/roce/protocol/host.h"

namespace nupa::roce {

/// One of an end's ways to the network.
struct Rail {
  Gid address;
  uint32_t interface_index = 0;  ///< to send by, 0: as the routes say
  uint16_t port = 0;             ///< UDP source port of what is sent
  uint32_t socket = 0;           ///< which of the port's sockets sends
};

/// How two NUPA ends tell each other the addresses of a connection's paths, on the first path. Path i goes from rail i
/// of one end to rail i of the other, counted round where one has fewer, so that both mean the same by a number.
///
///   flags(8): 1 the sender knows the receiver's rails, 2 it takes packets without CRC | count(8) | 0(16) | count
///   times: address(128) port(16) 0(16)
class Introduction {
 public:
  /// `mine`: 1 to kMaxPaths; the first is what the connection was made with. `takes_unchecked`: this end does without
  /// the invariant CRC if the other one does.
  explicit Introduction(std::vector<Rail> mine, bool takes_unchecked = false);

  /// The other end is NUPA, whose own rails may be several.
  void meet() { met_ = true; }
  /// A packet with kIntroduction; one with addresses of another family or of groups changes nothing. True: paths() is
  /// more than before.
  bool receive(const Packet& packet);
  /// Sends what is due; `packet`: its common fields.
  void transmit(int64_t now, Packet packet, Output& output);
  bool has_output(int64_t now) const { return now >= deadline(); }
  /// When there is something to send; INT64_MAX: never.
  int64_t deadline() const;

  /// 1 until both ends know each other's.
  uint32_t paths() const { return paths_; }
  /// Both ends do without the CRC.
  bool unchecked() const { return takes_unchecked_ && they_take_unchecked_; }
  const Rail& mine(uint32_t path) const { return mine_[path % mine_.size()]; }
  const Rail& theirs(uint32_t path) const { return theirs_[path % theirs_.size()]; }

 private:
  std::vector<Rail> mine_;
  std::vector<Rail> theirs_;
  uint32_t paths_ = 1;
  const bool takes_unchecked_;
  bool they_take_unchecked_ = false;
  bool met_ = false;
  bool known_ = false;  ///< the other end has these rails
  bool asked_ = false;  ///< the other end wants them
  uint32_t tries_ = 0;
  int64_t next_ns_ = 0;
  std::array<std::byte, 4 + kMaxPaths * 20> bytes_{};  ///< of the packet on its way
};

}  // namespace nupa::roce
