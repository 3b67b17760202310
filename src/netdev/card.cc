// SPDX-License-Identifier: Apache-2.0
#include "netdev/card.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

namespace nupa::netdev {
namespace {

/// Returns false if the value is no number, or too large for the type.
template <class Number>
bool take(const nlohmann::json& value, Number* number) {
  if (!value.is_number_unsigned()) return false;
  const auto read = value.get<uint64_t>();
  *number = static_cast<Number>(read);
  return read == *number;
}

}  // namespace

bool NodeCard::has(const Gid& address) const {
  return std::any_of(addresses.begin(), addresses.end(), [&](const Prefix& own) { return own.address == address; });
}

bool is_name(std::string_view text, size_t longest) {
  return !text.empty() && text.size() <= longest && text[0] != '.' && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == ':' || c == '_' || c == '-';
  });
}

std::string NodeCard::encode() const {
  nlohmann::json card{{"node", node}, {"instance", instance}, {"mtu", mtu}, {"uso", takes_datagrams}};
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
    if (!take(card.at("instance"), &read.instance) || !take(card.at("mtu"), &read.mtu)) return std::nullopt;
    read.takes_datagrams = card.value("uso", false);
    for (const auto& one : card.at("addresses")) {
      const auto prefix = Prefix::parse(one.get<std::string>());
      if (!prefix) return std::nullopt;
      read.addresses.push_back(*prefix);
    }
    for (const auto& one : card.at("lanes")) {
      LaneCard& lane = read.lanes.emplace_back();
      if (!take(one.at(0), &lane.qp_num) || !take(one.at(1), &lane.psn) || !take(one.at(2), &lane.rkey) ||
          !take(one.at(3), &lane.address))
        return std::nullopt;
    }
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  if (!is_name(read.node, kLongestNode) || read.mtu < kMinMtu || read.mtu > kMaxMtu || read.addresses.empty() ||
      read.addresses.size() > kMaxAddresses || read.lanes.empty() || read.lanes.size() > kMaxQueues)
    return std::nullopt;
  return read;
}

}  // namespace nupa::netdev
