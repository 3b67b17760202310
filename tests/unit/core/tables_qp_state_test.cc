// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <string>
#include <vector>

#include "core/device_attr.h"
#include "core/qp_state.h"

namespace nupa::core {
namespace {

using namespace qp_attr;  // NOLINT: the table below is unreadable otherwise

constexpr QpType kTypes[] = {QpType::kRc, QpType::kUc, QpType::kUd, QpType::kXrcSend, QpType::kXrcRecv};
constexpr QpState kStates[] = {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts,
                               QpState::kSqd,   QpState::kSqe,  QpState::kErr};
constexpr uint32_t kBeyondAllBits = 1u << 27;

/// What table 91 says of one transition of one transport service, as a reader of the specification writes it down.
struct Row {
  QpType type;
  QpState from;
  QpState to;
  uint32_t required;
  uint32_t optional;
};

// Alternate paths are absent although the table has them: automatic path migration is not offered.
// XRC rows hold more than the table: perftest gives both sides the responder's and the requester's attributes.
const Row kTable91[] = {
    {QpType::kRc, QpState::kReset, QpState::kInit, kPkeyIndex | kPort | kAccessFlags, 0},
    {QpType::kUc, QpState::kReset, QpState::kInit, kPkeyIndex | kPort | kAccessFlags, 0},
    {QpType::kUd, QpState::kReset, QpState::kInit, kPkeyIndex | kPort | kQkey, 0},
    {QpType::kXrcSend, QpState::kReset, QpState::kInit, kPkeyIndex | kPort | kAccessFlags, 0},
    {QpType::kXrcRecv, QpState::kReset, QpState::kInit, kPkeyIndex | kPort | kAccessFlags, 0},

    {QpType::kRc, QpState::kInit, QpState::kInit, 0, kPkeyIndex | kPort | kAccessFlags},
    {QpType::kUc, QpState::kInit, QpState::kInit, 0, kPkeyIndex | kPort | kAccessFlags},
    {QpType::kUd, QpState::kInit, QpState::kInit, 0, kPkeyIndex | kPort | kQkey},
    {QpType::kXrcSend, QpState::kInit, QpState::kInit, 0, kPkeyIndex | kPort | kAccessFlags},
    {QpType::kXrcRecv, QpState::kInit, QpState::kInit, 0, kPkeyIndex | kPort | kAccessFlags},

    {QpType::kRc, QpState::kInit, QpState::kRtr, kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer,
     kAccessFlags | kPkeyIndex},
    {QpType::kUc, QpState::kInit, QpState::kRtr, kAv | kPathMtu | kDestQpn | kRqPsn, kAccessFlags | kPkeyIndex},
    {QpType::kUd, QpState::kInit, QpState::kRtr, 0, kPkeyIndex | kQkey},
    {QpType::kXrcSend, QpState::kInit, QpState::kRtr, kAv | kPathMtu | kDestQpn | kRqPsn,
     kAccessFlags | kPkeyIndex | kMaxDestRdAtomic | kMinRnrTimer},
    {QpType::kXrcRecv, QpState::kInit, QpState::kRtr,
     kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer, kAccessFlags | kPkeyIndex},

    {QpType::kRc, QpState::kRtr, QpState::kRts, kTimeout | kRetryCnt | kRnrRetry | kSqPsn | kMaxQpRdAtomic,
     kCurState | kAccessFlags | kMinRnrTimer | kPathMigState},
    {QpType::kUc, QpState::kRtr, QpState::kRts, kSqPsn, kCurState | kAccessFlags | kPathMigState},
    {QpType::kUd, QpState::kRtr, QpState::kRts, kSqPsn, kCurState | kQkey},
    {QpType::kXrcSend, QpState::kRtr, QpState::kRts, kTimeout | kRetryCnt | kRnrRetry | kSqPsn | kMaxQpRdAtomic,
     kCurState | kAccessFlags | kPathMigState},
    {QpType::kXrcRecv, QpState::kRtr, QpState::kRts, kTimeout | kSqPsn,
     kCurState | kAccessFlags | kMinRnrTimer | kPathMigState | kRetryCnt | kRnrRetry | kMaxQpRdAtomic},

    {QpType::kRc, QpState::kRts, QpState::kRts, 0, kCurState | kAccessFlags | kPathMigState | kMinRnrTimer},
    {QpType::kUc, QpState::kRts, QpState::kRts, 0, kCurState | kAccessFlags | kPathMigState},
    {QpType::kUd, QpState::kRts, QpState::kRts, 0, kCurState | kQkey},
    {QpType::kXrcSend, QpState::kRts, QpState::kRts, 0, kCurState | kAccessFlags | kPathMigState},
    {QpType::kXrcRecv, QpState::kRts, QpState::kRts, 0, kCurState | kAccessFlags | kPathMigState | kMinRnrTimer},

    {QpType::kRc, QpState::kRts, QpState::kSqd, 0, kEnSqdAsyncNotify},
    {QpType::kUc, QpState::kRts, QpState::kSqd, 0, kEnSqdAsyncNotify},
    {QpType::kUd, QpState::kRts, QpState::kSqd, 0, kEnSqdAsyncNotify},
    {QpType::kXrcSend, QpState::kRts, QpState::kSqd, 0, kEnSqdAsyncNotify},
    {QpType::kXrcRecv, QpState::kRts, QpState::kSqd, 0, kEnSqdAsyncNotify},

    {QpType::kRc, QpState::kSqd, QpState::kRts, 0, kCurState | kAccessFlags | kMinRnrTimer | kPathMigState},
    {QpType::kUc, QpState::kSqd, QpState::kRts, 0, kCurState | kAccessFlags | kPathMigState},
    {QpType::kUd, QpState::kSqd, QpState::kRts, 0, kCurState | kQkey},
    {QpType::kXrcSend, QpState::kSqd, QpState::kRts, 0, kCurState | kAccessFlags | kPathMigState},
    {QpType::kXrcRecv, QpState::kSqd, QpState::kRts, 0, kCurState | kAccessFlags | kMinRnrTimer | kPathMigState},

    {QpType::kRc, QpState::kSqd, QpState::kSqd, 0,
     kPort | kAv | kTimeout | kRetryCnt | kRnrRetry | kMaxQpRdAtomic | kMaxDestRdAtomic | kAccessFlags | kPkeyIndex |
         kMinRnrTimer | kPathMigState},
    {QpType::kUc, QpState::kSqd, QpState::kSqd, 0, kAv | kAccessFlags | kPkeyIndex | kPathMigState},
    {QpType::kUd, QpState::kSqd, QpState::kSqd, 0, kPkeyIndex | kQkey},
    {QpType::kXrcSend, QpState::kSqd, QpState::kSqd, 0,
     kPort | kAv | kTimeout | kRetryCnt | kRnrRetry | kMaxQpRdAtomic | kAccessFlags | kPkeyIndex | kPathMigState},
    {QpType::kXrcRecv, QpState::kSqd, QpState::kSqd, 0,
     kPort | kAv | kTimeout | kMaxDestRdAtomic | kAccessFlags | kPkeyIndex | kMinRnrTimer | kPathMigState},

    // Only services whose errors stop the send queue alone are ever in SQE.
    {QpType::kUc, QpState::kSqe, QpState::kRts, 0, kCurState | kAccessFlags},
    {QpType::kUd, QpState::kSqe, QpState::kRts, 0, kCurState | kQkey},
};

const Row* row_of(QpType type, QpState from, QpState to) {
  for (const Row& row : kTable91)
    if (row.type == type && row.from == from && row.to == to) return &row;
  return nullptr;
}

/// Values that every transition takes.
QpAttr good_values() {
  QpAttr attr;
  attr.av.is_global = true;
  attr.path_mtu = Mtu::k4096;
  return attr;
}

int modify(QpType type, QpState from, QpState to, uint32_t mask, QpAttr attr = good_values()) {
  attr.state = to;
  attr.cur_state = from;
  QpState next = QpState::kReset;
  const int error = check_modify(type, from, attr, mask | kState, &next);
  if (error == 0) {
    EXPECT_EQ(to, next);
  }
  return error;
}

std::string name_of(QpType type, QpState from, QpState to, uint32_t mask) {
  return "type " + std::to_string(static_cast<int>(type)) + ", state " + std::to_string(static_cast<int>(from)) +
         " to " + std::to_string(static_cast<int>(to)) + ", mask " + std::to_string(mask);
}

template <typename Check>
void for_each_transition(Check check) {
  for (const QpType type : kTypes)
    for (const QpState from : kStates)
      for (const QpState to : kStates) check(type, from, to);
}

bool goes_from_anywhere(QpState to) { return to == QpState::kReset || to == QpState::kErr; }

TEST(IbtaTable91, EachTransition_WithoutARequiredAttribute_IsRefused) {
  for (const Row& row : kTable91) {
    EXPECT_EQ(0, modify(row.type, row.from, row.to, row.required)) << name_of(row.type, row.from, row.to, row.required);
    EXPECT_EQ(0, modify(row.type, row.from, row.to, row.required | row.optional))
        << name_of(row.type, row.from, row.to, row.required | row.optional);
    for (uint32_t bit = 1; bit < kBeyondAllBits; bit <<= 1) {
      if ((row.required & bit) == 0) continue;
      EXPECT_EQ(EINVAL, modify(row.type, row.from, row.to, row.required & ~bit))
          << name_of(row.type, row.from, row.to, row.required & ~bit);
    }
  }
}

TEST(IbtaTable91, EachTransition_WithAnAttributeOutsideTheTable_IsRefused) {
  for (const Row& row : kTable91) {
    for (uint32_t bit = 1; bit < kBeyondAllBits; bit <<= 1) {
      if (bit == kState || (row.required & bit) != 0) continue;
      EXPECT_EQ((row.optional & bit) != 0 ? 0 : EINVAL, modify(row.type, row.from, row.to, row.required | bit))
          << name_of(row.type, row.from, row.to, bit);
    }
  }
}

TEST(IbtaTable91, TransitionsOutsideTheTable_AreRefused) {
  for_each_transition([](QpType type, QpState from, QpState to) {
    if (goes_from_anywhere(to) || row_of(type, from, to) != nullptr) return;
    EXPECT_EQ(EINVAL, modify(type, from, to, 0)) << name_of(type, from, to, 0);
    // Nor do the attributes that lead to `to` from elsewhere open the way.
    for (const Row& row : kTable91) {
      if (row.type != type || row.to != to) continue;
      EXPECT_EQ(EINVAL, modify(type, from, to, row.required)) << name_of(type, from, to, row.required);
    }
  });
}

TEST(Ibta1031QpStates, ResetAndError_FromEachState_AreReachedWithoutOtherAttributes) {
  for_each_transition([](QpType type, QpState from, QpState to) {
    if (!goes_from_anywhere(to)) return;
    EXPECT_EQ(0, modify(type, from, to, 0)) << name_of(type, from, to, 0);
    for (uint32_t bit = kCurState; bit < kBeyondAllBits; bit <<= 1)
      EXPECT_EQ(EINVAL, modify(type, from, to, bit)) << name_of(type, from, to, bit);
  });
}

TEST(Ibta1031QpStates, UnknownState_IsRefused) {
  QpAttr attr = good_values();
  attr.state = static_cast<QpState>(static_cast<uint32_t>(QpState::kErr) + 1);
  QpState next = QpState::kSqd;
  EXPECT_EQ(EINVAL, check_modify(QpType::kRc, QpState::kInit, attr, kState, &next));
  EXPECT_EQ(QpState::kSqd, next) << "a refusal leaves the answer alone";
}

TEST(Ibta11242ModifyQp, WithoutAStateInTheMask_StateStays) {
  QpAttr attr = good_values();
  attr.state = QpState::kErr;  // not in the mask: must not count
  const auto stays = [&](QpType type, QpState state, uint32_t mask) {
    attr.cur_state = state;
    QpState next = QpState::kReset;
    const int error = check_modify(type, state, attr, mask, &next);
    if (error == 0) {
      EXPECT_EQ(state, next);
    }
    return error;
  };
  EXPECT_EQ(0, stays(QpType::kRc, QpState::kInit, kPkeyIndex | kPort | kAccessFlags));
  EXPECT_EQ(0, stays(QpType::kRc, QpState::kRts, kMinRnrTimer));
  EXPECT_EQ(0, stays(QpType::kUd, QpState::kRts, kQkey));
  EXPECT_EQ(0, stays(QpType::kRc, QpState::kSqd, kAv | kTimeout | kRetryCnt));
  EXPECT_EQ(EINVAL, stays(QpType::kRc, QpState::kRts, kTimeout));
  EXPECT_EQ(EINVAL, stays(QpType::kRc, QpState::kRtr, kMinRnrTimer)) << "table 91 has no RTR to RTR";
  EXPECT_EQ(EINVAL, stays(QpType::kRc, QpState::kErr, kAccessFlags));
  EXPECT_EQ(EINVAL, stays(QpType::kRc, QpState::kReset, kPort));
  EXPECT_EQ(0, stays(QpType::kRc, QpState::kReset, 0));
  EXPECT_EQ(0, stays(QpType::kRc, QpState::kErr, 0));
}

TEST(Ibta11242ModifyQp, WrongCurrentState_IsRefused) {
  QpAttr attr = good_values();
  attr.state = QpState::kRts;
  QpState next;
  attr.cur_state = QpState::kSqe;
  EXPECT_EQ(0, check_modify(QpType::kUd, QpState::kSqe, attr, kState | kCurState, &next));
  EXPECT_EQ(EINVAL, check_modify(QpType::kUd, QpState::kRts, attr, kState | kCurState, &next));
  attr.cur_state = QpState::kRts;
  EXPECT_EQ(0, check_modify(QpType::kUd, QpState::kRts, attr, kState | kCurState, &next));
  EXPECT_EQ(EINVAL, check_modify(QpType::kUd, QpState::kSqe, attr, kState | kCurState, &next));
}

/// One attribute's range, tried at both sides of its end in a drained RC queue pair or on the way there.
struct Range {
  const char* what;
  QpState from;
  QpState to;
  std::function<void(QpAttr&)> last_good;
  std::function<void(QpAttr&)> first_bad;
};

TEST(Ibta11242ModifyQp, EachValue_BeyondItsLimit_IsRefused) {
  constexpr QpState kReset = QpState::kReset, kInit = QpState::kInit, kRtr = QpState::kRtr, kRts = QpState::kRts;
  const auto reads = static_cast<uint8_t>(device_attr().max_qp_init_rd_atom);
  const auto gids = static_cast<uint8_t>(port_attr().gid_tbl_len);
  const std::vector<Range> ranges = {
      {"port", kReset, kInit, [](QpAttr& a) { a.port_num = 1; }, [](QpAttr& a) { a.port_num = 2; }},
      {"port 0", kReset, kInit, [](QpAttr& a) { a.port_num = 1; }, [](QpAttr& a) { a.port_num = 0; }},
      {"P_Key index", kReset, kInit, [](QpAttr& a) { a.pkey_index = 0; }, [](QpAttr& a) { a.pkey_index = 1; }},
      {"rights", kReset, kInit,
       [](QpAttr& a) {
         a.access_flags = access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic |
                          access::kMwBind | access::kOptionalMask;
       },
       [](QpAttr& a) { a.access_flags = 1u << 10; }},
      {"largest MTU", kInit, kRtr, [](QpAttr& a) { a.path_mtu = Mtu::k4096; }, [](QpAttr& a) { a.path_mtu = Mtu{6}; }},
      {"smallest MTU", kInit, kRtr, [](QpAttr& a) { a.path_mtu = Mtu::k256; }, [](QpAttr& a) { a.path_mtu = Mtu{0}; }},
      {"destination", kInit, kRtr, [](QpAttr& a) { a.dest_qp_num = 0xffffff; },
       [](QpAttr& a) { a.dest_qp_num = 0x1000000; }},
      {"responder's reads", kInit, kRtr, [=](QpAttr& a) { a.max_dest_rd_atomic = reads; },
       [=](QpAttr& a) { a.max_dest_rd_atomic = static_cast<uint8_t>(reads + 1); }},
      {"source GID", kInit, kRtr, [=](QpAttr& a) { a.av.sgid_index = static_cast<uint8_t>(gids - 1); },
       [=](QpAttr& a) { a.av.sgid_index = gids; }},
      {"path's port", kInit, kRtr, [](QpAttr& a) { a.av.port_num = 1; }, [](QpAttr& a) { a.av.port_num = 2; }},
      {"timeout", kRtr, kRts, [](QpAttr& a) { a.timeout = 31; }, [](QpAttr& a) { a.timeout = 32; }},
      {"requester's reads", kRtr, kRts, [=](QpAttr& a) { a.max_rd_atomic = reads; },
       [=](QpAttr& a) { a.max_rd_atomic = static_cast<uint8_t>(reads + 1); }},
  };
  for (const Range& range : ranges) {
    const uint32_t mask = row_of(QpType::kRc, range.from, range.to)->required;
    QpAttr attr = good_values();
    range.last_good(attr);
    EXPECT_EQ(0, modify(QpType::kRc, range.from, range.to, mask, attr)) << range.what;
    range.first_bad(attr);
    EXPECT_EQ(EINVAL, modify(QpType::kRc, range.from, range.to, mask, attr)) << range.what;
  }
}

TEST(Ibta11242ModifyQp, BitsAboveTheFieldsOfTheWire_AreCut) {
  QpAttr attr;
  attr.rq_psn = 0x1234567;
  attr.sq_psn = 0xff000001;
  attr.min_rnr_timer = 0x21;
  attr.retry_cnt = 9;
  attr.rnr_retry = 15;
  cut_to_fields(attr);
  EXPECT_EQ(0x234567u, attr.rq_psn);
  EXPECT_EQ(1u, attr.sq_psn);
  EXPECT_EQ(1, attr.min_rnr_timer);
  EXPECT_EQ(1, attr.retry_cnt);
  EXPECT_EQ(7, attr.rnr_retry);
}

TEST(Ibta11242ModifyQp, ValuesOutsideTheMask_AreIgnored) {
  QpAttr attr = good_values();
  attr.timeout = 32;
  attr.sq_psn = ~0u;
  attr.path_mig_state = PathMigState::kRearm;
  const uint32_t mask = row_of(QpType::kRc, QpState::kInit, QpState::kRtr)->required;
  EXPECT_EQ(0, modify(QpType::kRc, QpState::kInit, QpState::kRtr, mask, attr));
}

TEST(IbtaAnnexA17RoceV2, PathsThatAreNotGlobal_AreRefusedExceptThisHosts) {
  const uint32_t mask = row_of(QpType::kRc, QpState::kInit, QpState::kRtr)->required;
  QpAttr attr = good_values();
  attr.av.is_global = false;
  EXPECT_EQ(EINVAL, modify(QpType::kRc, QpState::kInit, QpState::kRtr, mask, attr));
  attr.av.dlid = kHostLid;
  EXPECT_EQ(0, modify(QpType::kRc, QpState::kInit, QpState::kRtr, mask, attr));
  attr.av.dlid = kHostLid + 1;
  EXPECT_EQ(EINVAL, modify(QpType::kRc, QpState::kInit, QpState::kRtr, mask, attr));
}

TEST(Ibta1728PathMigration, PathMigrationStates_ExceptMigrated_AreRefused) {
  QpAttr attr = good_values();
  attr.path_mig_state = PathMigState::kMigrated;
  EXPECT_EQ(0, modify(QpType::kRc, QpState::kRts, QpState::kRts, kPathMigState, attr));
  for (const PathMigState state : {PathMigState::kRearm, PathMigState::kArmed}) {
    attr.path_mig_state = state;
    EXPECT_EQ(EINVAL, modify(QpType::kRc, QpState::kRts, QpState::kRts, kPathMigState, attr));
  }
}

}  // namespace
}  // namespace nupa::core
