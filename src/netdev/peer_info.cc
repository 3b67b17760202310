// SPDX-License-Identifier: Apache-2.0
#include "netdev/peer_info.h"
#include "json/json.h"

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

bool PeerInfo::has(const Gid& address) const {
  return std::any_of(addresses.begin(), addresses.end(), [&](const Prefix& own) { return own.address == address; });
}

bool is_name(std::string_view text, size_t longest) {
  return !text.empty() && text.size() <= longest && text[0] != '.' && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == ':' || c == '_' || c == '-';
  });
}

std::string PeerInfo::encode() const {
  nlohmann::json peer_info{{"node", node}, {"instance", instance}, {"mtu", mtu}, {"uso", takes_datagrams}};
  for (const Prefix& prefix : addresses) peer_info["addresses"].push_back(prefix.text());
  for (const ChannelInfo& channel : channels)
    peer_info["lanes"].push_back({channel.qp_num, channel.psn, channel.rkey, channel.address});
  return json_text(peer_info);
}

std::optional<PeerInfo> PeerInfo::decode(std::string_view text) {
  const auto parsed = parse_json(text);
  if (!parsed || !parsed->is_object()) return std::nullopt;
  const nlohmann::json& peer_info = *parsed;
  PeerInfo read;
  try {
    read.node = peer_info.at("node").get<std::string>();
    if (!take(peer_info.at("instance"), &read.instance) || !take(peer_info.at("mtu"), &read.mtu)) return std::nullopt;
    read.takes_datagrams = peer_info.value("uso", false);
    for (const auto& one : peer_info.at("addresses")) {
      const auto prefix = Prefix::parse(one.get<std::string>());
      if (!prefix) return std::nullopt;
      read.addresses.push_back(*prefix);
    }
    for (const auto& one : peer_info.at("lanes")) {
      ChannelInfo& channel = read.channels.emplace_back();
      if (!take(one.at(0), &channel.qp_num) || !take(one.at(1), &channel.psn) || !take(one.at(2), &channel.rkey) ||
          !take(one.at(3), &channel.address))
        return std::nullopt;
    }
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  if (!is_name(read.node, kLongestNode) || read.mtu < kMinMtu || read.mtu > kMaxMtu || read.addresses.empty() ||
      read.addresses.size() > kMaxAddresses || read.channels.empty() || read.channels.size() > kMaxQueues)
    return std::nullopt;
  return read;
}

}  // namespace nupa::netdev
