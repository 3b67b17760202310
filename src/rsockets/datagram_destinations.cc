// SPDX-License-Identifier: Apache-2.0
#include "rsockets/datagram_destinations.h"

#include <netinet/in.h>

#include <cstring>
#include <iterator>

namespace nupa::rsockets {

bool DatagramAddress::operator<(const DatagramAddress& other) const {
  const sockaddr_storage& a = value;
  const sockaddr_storage& b = other.value;
  if (a.ss_family != b.ss_family) return a.ss_family < b.ss_family;
  if (a.ss_family == AF_INET) return std::memcmp(&a, &b, offsetof(sockaddr_in, sin_zero)) < 0;
  const auto& x = reinterpret_cast<const sockaddr_in6&>(a);
  const auto& y = reinterpret_cast<const sockaddr_in6&>(b);
  if (x.sin6_port != y.sin6_port) return x.sin6_port < y.sin6_port;
  return std::memcmp(&x.sin6_addr, &y.sin6_addr, sizeof x.sin6_addr) < 0;
}

Destinations::~Destinations() {
  for (auto& [address, destination] : known_) {
    if (destination.ah != nullptr) ibv_destroy_ah(destination.ah);
  }
}

Destination* Destinations::find(const DatagramAddress& address) {
  const auto found = known_.find(address);
  return found == known_.end() ? nullptr : &found->second;
}

Destination* Destinations::add(const DatagramAddress& address, DatagramPath* path) {
  if (known_.size() >= most_) forget_one();
  Destination& added = known_[address];
  added.address = address;
  added.path = path;
  added.place = not_sent_to_.insert(not_sent_to_.end(), &added);
  return &added;
}

void Destinations::heard(Destination* destination) {
  if (destination->sent_to) return;
  not_sent_to_.splice(not_sent_to_.end(), not_sent_to_, destination->place);
}

void Destinations::used(Destination* destination) {
  sent_to_.splice(sent_to_.end(), destination->sent_to ? sent_to_ : not_sent_to_, destination->place);
  destination->sent_to = true;
}

void Destinations::keep(Destination* destination) {
  if (destination != nullptr) used(destination);
  kept_ = destination;
}

void Destinations::forget_one() {
  auto& list = not_sent_to_.empty() ? sent_to_ : not_sent_to_;
  const auto oldest = list.front() == kept_ ? std::next(list.begin()) : list.begin();
  const DatagramAddress address = (*oldest)->address;
  if ((*oldest)->ah != nullptr) ibv_destroy_ah((*oldest)->ah);
  list.erase(oldest);
  known_.erase(address);
}

}  // namespace nupa::rsockets
