#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "netdev/lane.h"
#include "netdev/prefix.h"

namespace nupa::netdev {

/// What a node tells others of itself, once both have proved the key.
struct NodeCard {
  std::string node;       ///< its name, which no other one of the network has
  uint64_t instance = 0;  ///< drawn when it starts
  std::vector<Prefix> addresses;
  uint32_t mtu = kMinMtu;
  bool takes_datagrams = false;  ///< its kernel takes large segments of datagrams (USO)
  std::vector<LaneCard> lanes;

  bool has(const Gid& address) const;
  /// As JSON.
  std::string encode() const;
  /// Nothing: it is none.
  static std::optional<NodeCard> decode(std::string_view text);
};

constexpr size_t kMaxAddresses = 16;
constexpr uint32_t kMaxQueues = 16;
/// Letters, digits, '.', ':', '_' and '-': names of networks and nodes, which become names of files.
bool is_name(std::string_view text, size_t longest);
constexpr size_t kLongestNetwork = 31;
constexpr size_t kLongestNode = 40;  // an address of IPv6 is one
constexpr const char* kNamesHave = "names have letters, digits and .:_- (networks up to 31, nodes up to 40)";

}  // namespace nupa::netdev
