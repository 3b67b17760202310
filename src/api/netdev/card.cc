#include "api/netdev/card.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

namespace nupa::netdev {

bool NodeCard::has(const Gid& address) const {
  return std::any_of(addresses.begin(), addresses.end(), [&](const Prefix& own) { return own.address == address; });
}

bool is_name(std::string_view text, size_t longest) {
  return !text.empty() && text.size() <= longest && text[0] != '.' && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == ':' || c == '_' || c == '-';
  });
}

std::string NodeCard::encode() const {
  nlohmann::json card{{"node", node}, {"instance", instance}, {"mtu", mtu}};
  for (const Prefix& prefix : addresses) card["addresses"].push_back(prefix.text());
  for (const LaneCard& lane : lanes) card["lanes"].push_back({lane.qp_num, lane.psn, lane.rkey, lane.address});
  return card.dump();
}

std::optional<NodeCard> NodeCard::decode(std::string_view text) {
  const auto card = nlohmann::json::parse(text, nullptr, false);
  if (!card.is_object()) return std::nullopt;
  NodeCard read;
  try {
    read.node = card.at("node").get<std::string>();
    read.instance = card.at("instance").get<uint64_t>();
    read.mtu = card.at("mtu").get<uint32_t>();
    for (const auto& one : card.at("addresses")) {
      const auto prefix = Prefix::parse(one.get<std::string>());
      if (!prefix) return std::nullopt;
      read.addresses.push_back(*prefix);
    }
    for (const auto& one : card.at("lanes"))
      read.lanes.push_back(
          {one.at(0).get<uint32_t>(), one.at(1).get<uint32_t>(), one.at(2).get<uint32_t>(), one.at(3).get<uint64_t>()});
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  if (!is_name(read.node, kLongestNode) || read.mtu < kMinMtu || read.mtu > kMaxMtu || read.addresses.empty() ||
      read.addresses.size() > kMaxAddresses || read.lanes.empty() || read.lanes.size() > kMaxQueues)
    return std::nullopt;
  return read;
}

}  // namespace nupa::netdev
