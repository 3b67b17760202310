// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "netdev/peer_channel.h"
#include "netdev/prefix.h"

namespace nupa::netdev {

/// The peer info that a node sends once both nodes have proved that they have the key.
struct PeerInfo {
  std::string node;       ///< a name that is unique in the network
  uint64_t instance = 0;  ///< random, drawn at the node's start
  std::vector<Prefix> addresses;
  uint32_t mtu = kMinMtu;
  bool takes_datagrams = false;  ///< the kernel accepts large segments of datagrams (USO)
  std::vector<ChannelInfo> channels;

  bool has(const Gid& address) const;
  /// Returns the peer info as JSON.
  std::string encode() const;
  /// Returns nothing if the text is no valid peer info.
  static std::optional<PeerInfo> decode(std::string_view text);
};

constexpr size_t kMaxAddresses = 16;
constexpr uint32_t kMaxQueues = 16;
/// Checks for letters, digits, '.', ':', '_' and '-'. Names of networks and nodes also become file names.
bool is_name(std::string_view text, size_t longest);
constexpr size_t kLongestNetwork = 31;
constexpr size_t kLongestNode = 40;  // room for an IPv6 address as a name
constexpr const char* kNamesHave =
    "names have letters, digits and .:_- only (network: at most 31 characters, node: at most 40)";

}  // namespace nupa::netdev
