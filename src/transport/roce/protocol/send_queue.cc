// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/protocol/send_queue.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/memory_fault.h"

namespace nupa::roce {

SendQueue::SendQueue(uint32_t max_wr, uint32_t max_sge, uint32_t max_inline, uint32_t mtu, Seq first)
    : requests_(std::bit_ceil(std::max(max_wr, 1u))),
      lists_(std::make_unique<Sge[]>(requests_.size() * std::max(max_sge, 1u))),
      inlined_(std::make_unique_for_overwrite<std::byte[]>(requests_.size() * max_inline)),
      mask_(static_cast<uint32_t>(requests_.size()) - 1),
      max_sge_(std::max(max_sge, 1u)),
      max_inline_(max_inline),
      mtu_(mtu),
      end_(first) {}

Request& SendQueue::push(const SendWr& wr, uint32_t position, WcStatus fault) {
  const uint32_t slot = tail_ & mask_;
  Request& request = requests_[slot];
  request.wr = wr;
  request.position = position;
  request.done = false;
  request.fault = fault;
  request.length = 0;
  Sge* list = &lists_[size_t{slot} * max_sge_];
  const bool inlined = (wr.flags & send_flag::kInline) != 0;
  std::byte* to = inlined_.get() + size_t{slot} * max_inline_;
  for (uint32_t i = 0; i < wr.num_sge; ++i) {
    list[i] = wr.sg_list[i];
    request.length += list[i].length;
    if (!inlined || list[i].length == 0) continue;
    std::memcpy(to, reinterpret_cast<const void*>(list[i].addr), list[i].length);
    list[i].addr = reinterpret_cast<uint64_t>(to);
    to += list[i].length;
  }
  request.wr.sg_list = list;
  request.first = end_;
  switch (wr.opcode) {
    case Opcode::kBindMw:
    case Opcode::kLocalInv:
      request.packets = 0;
      break;
    case Opcode::kCompareSwap:
    case Opcode::kFetchAdd:
    case Opcode::kAtomicWrite:
    case Opcode::kFlush:
      request.packets = 1;
      break;
    default:
      request.packets = std::max<uint32_t>(static_cast<uint32_t>((request.length + mtu_ - 1) / mtu_), 1);
  }
  if (fault != WcStatus::kSuccess) request.packets = 0;
  end_ += request.packets;
  ++tail_;
  return request;
}

uint32_t SendQueue::find(Seq seq) const {
  // Requests are in the order of their numbers; those that run locally share the number of the request behind them.
  uint32_t low = 0;
  uint32_t high = tail_ - head_ - 1;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (at(head_ + middle).end() > seq)
      high = middle;
    else
      low = middle + 1;
  }
  return head_ + low;
}

namespace {

/// Calls `visit(sge, within, bytes)` for each part of [offset, offset + length) in the list; stops when it returns
/// false.
template <class Visit>
bool for_each_part(const Request& request, uint64_t offset, uint32_t length, Visit&& visit) {
  for (uint32_t i = 0; i < request.wr.num_sge && length > 0; ++i) {
    const Sge& sge = request.wr.sg_list[i];
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(sge.length - offset, length));
    if (!visit(sge, offset, bytes)) return false;
    length -= bytes;
    offset = 0;
  }
  return true;
}

}  // namespace

uint32_t SendQueue::gather(const Request& request, Host& host, uint64_t offset, uint32_t length, Fragment* out) const {
  uint32_t count = 0;
  const bool inlined = (request.wr.flags & send_flag::kInline) != 0;
  const bool held = for_each_part(request, offset, length, [&](const Sge& sge, uint64_t within, uint32_t bytes) {
    auto* data = reinterpret_cast<std::byte*>(sge.addr);
    if (!inlined && !host.locate(sge, 0, &data)) return false;
    out[count++] = {data == nullptr ? nullptr : data + within, bytes};
    return true;
  });
  return held ? count : 0;
}

bool SendQueue::scatter(const Request& request, Host& host, uint64_t offset, const std::byte* data, uint32_t length,
                        const std::byte** behind) {
  *behind = nullptr;
  return for_each_part(request, offset, length, [&](const Sge& sge, uint64_t within, uint32_t bytes) {
    std::byte* to = nullptr;
    if (!host.locate(sge, access::kLocalWrite, &to)) return false;
    if (to != nullptr) {
      if (!base::try_access(to + within, bytes, [&] { std::memcpy(to + within, data, bytes); })) return false;
      *behind = to + within + bytes;
    }
    data += bytes;
    return true;
  });
}

}  // namespace nupa::roce
