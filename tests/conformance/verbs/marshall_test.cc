// SPDX-License-Identifier: Apache-2.0
/// Copies between the kernel's structures of the connection manager and those of verbs: each field is copied.
#include <gtest/gtest.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
// marshall.h of rdma-core is not installed with every version of it.
extern "C" {
void ibv_copy_qp_attr_from_kern(ibv_qp_attr* to, const ib_uverbs_qp_attr* from);
void ibv_copy_ah_attr_from_kern(ibv_ah_attr* to, const ib_uverbs_ah_attr* from);
void ibv_copy_path_rec_from_kern(ibv_sa_path_rec* to, const ib_user_path_rec* from);
void ibv_copy_path_rec_to_kern(ib_user_path_rec* to, const ibv_sa_path_rec* from);
}

#include <cstring>

namespace nupa::test {
namespace {

/// Different bytes in each place.
template <class T>
T numbered(uint8_t first) {
  T made;
  auto* bytes = reinterpret_cast<unsigned char*>(&made);
  for (size_t i = 0; i < sizeof made; ++i) bytes[i] = static_cast<unsigned char>(first + i * 7);
  return made;
}

void expect_same(const ibv_ah_attr& to, const ib_uverbs_ah_attr& from) {
  EXPECT_EQ(std::memcmp(to.grh.dgid.raw, from.grh.dgid, sizeof from.grh.dgid), 0);
  EXPECT_EQ(to.grh.flow_label, from.grh.flow_label);
  EXPECT_EQ(to.grh.sgid_index, from.grh.sgid_index);
  EXPECT_EQ(to.grh.hop_limit, from.grh.hop_limit);
  EXPECT_EQ(to.grh.traffic_class, from.grh.traffic_class);
  EXPECT_EQ(to.dlid, from.dlid);
  EXPECT_EQ(to.sl, from.sl);
  EXPECT_EQ(to.src_path_bits, from.src_path_bits);
  EXPECT_EQ(to.static_rate, from.static_rate);
  EXPECT_EQ(to.is_global, from.is_global);
  EXPECT_EQ(to.port_num, from.port_num);
}

template <class One, class Other>
void expect_same_path(const One& one, const Other& other) {
  EXPECT_EQ(one.dlid, other.dlid);
  EXPECT_EQ(one.slid, other.slid);
  EXPECT_EQ(static_cast<uint32_t>(one.raw_traffic), static_cast<uint32_t>(other.raw_traffic));
  EXPECT_EQ(one.flow_label, other.flow_label);
  EXPECT_EQ(one.hop_limit, other.hop_limit);
  EXPECT_EQ(one.traffic_class, other.traffic_class);
  EXPECT_EQ(static_cast<uint32_t>(one.reversible), static_cast<uint32_t>(other.reversible));
  EXPECT_EQ(one.numb_path, other.numb_path);
  EXPECT_EQ(one.pkey, other.pkey);
  EXPECT_EQ(one.sl, other.sl);
  EXPECT_EQ(one.mtu_selector, other.mtu_selector);
  EXPECT_EQ(static_cast<uint8_t>(one.mtu), static_cast<uint8_t>(other.mtu));
  EXPECT_EQ(one.rate_selector, other.rate_selector);
  EXPECT_EQ(one.rate, other.rate);
  EXPECT_EQ(one.packet_life_time_selector, other.packet_life_time_selector);
  EXPECT_EQ(one.packet_life_time, other.packet_life_time);
  EXPECT_EQ(one.preference, other.preference);
}

TEST(VerbsMarshall, AddressHandle_EachField_IsCopied) {
  const auto from = numbered<ib_uverbs_ah_attr>(3);
  ibv_ah_attr to{};
  ibv_copy_ah_attr_from_kern(&to, &from);
  expect_same(to, from);
}

TEST(VerbsMarshall, QueuePair_EachField_IsCopied) {
  auto from = numbered<ib_uverbs_qp_attr>(5);
  from.qp_state = IBV_QPS_RTS;
  from.cur_qp_state = IBV_QPS_SQD;
  from.path_mtu = IBV_MTU_2048;
  from.path_mig_state = IBV_MIG_REARM;
  ibv_qp_attr to{};
  to.rate_limit = 77;
  ibv_copy_qp_attr_from_kern(&to, &from);
  EXPECT_EQ(static_cast<uint32_t>(to.qp_state), from.qp_state);
  EXPECT_EQ(static_cast<uint32_t>(to.cur_qp_state), from.cur_qp_state);
  EXPECT_EQ(static_cast<uint32_t>(to.path_mtu), from.path_mtu);
  EXPECT_EQ(static_cast<uint32_t>(to.path_mig_state), from.path_mig_state);
  EXPECT_EQ(to.qkey, from.qkey);
  EXPECT_EQ(to.rq_psn, from.rq_psn);
  EXPECT_EQ(to.sq_psn, from.sq_psn);
  EXPECT_EQ(to.dest_qp_num, from.dest_qp_num);
  EXPECT_EQ(to.qp_access_flags, from.qp_access_flags);
  EXPECT_EQ(to.cap.max_send_wr, from.max_send_wr);
  EXPECT_EQ(to.cap.max_recv_wr, from.max_recv_wr);
  EXPECT_EQ(to.cap.max_send_sge, from.max_send_sge);
  EXPECT_EQ(to.cap.max_recv_sge, from.max_recv_sge);
  EXPECT_EQ(to.cap.max_inline_data, from.max_inline_data);
  expect_same(to.ah_attr, from.ah_attr);
  expect_same(to.alt_ah_attr, from.alt_ah_attr);
  EXPECT_EQ(to.pkey_index, from.pkey_index);
  EXPECT_EQ(to.alt_pkey_index, from.alt_pkey_index);
  EXPECT_EQ(to.en_sqd_async_notify, from.en_sqd_async_notify);
  EXPECT_EQ(to.sq_draining, from.sq_draining);
  EXPECT_EQ(to.max_rd_atomic, from.max_rd_atomic);
  EXPECT_EQ(to.max_dest_rd_atomic, from.max_dest_rd_atomic);
  EXPECT_EQ(to.min_rnr_timer, from.min_rnr_timer);
  EXPECT_EQ(to.port_num, from.port_num);
  EXPECT_EQ(to.timeout, from.timeout);
  EXPECT_EQ(to.retry_cnt, from.retry_cnt);
  EXPECT_EQ(to.rnr_retry, from.rnr_retry);
  EXPECT_EQ(to.alt_port_num, from.alt_port_num);
  EXPECT_EQ(to.alt_timeout, from.alt_timeout);
  EXPECT_EQ(to.rate_limit, 77u) << "the kernel's structure has none";
}

TEST(VerbsMarshall, Path_EachFieldInBothDirections_IsCopied) {
  const auto from = numbered<ib_user_path_rec>(9);
  ibv_sa_path_rec path{};
  ibv_copy_path_rec_from_kern(&path, &from);
  EXPECT_EQ(std::memcmp(path.dgid.raw, from.dgid, sizeof from.dgid), 0);
  EXPECT_EQ(std::memcmp(path.sgid.raw, from.sgid, sizeof from.sgid), 0);
  expect_same_path(path, from);

  const auto other = numbered<ibv_sa_path_rec>(11);
  ib_user_path_rec to{};
  ibv_copy_path_rec_to_kern(&to, &other);
  EXPECT_EQ(std::memcmp(to.dgid, other.dgid.raw, sizeof to.dgid), 0);
  EXPECT_EQ(std::memcmp(to.sgid, other.sgid.raw, sizeof to.sgid), 0);
  expect_same_path(to, other);
}

}  // namespace
}  // namespace nupa::test
