// include/keyhole/keyhole.h
// The whole public C++ API.
#pragma once

#include "keyhole/attention.h"
#include "keyhole/error.h"
#include "keyhole/gather.h"
#include "keyhole/lists.h"
#include "keyhole/normalizer.h"
#include "keyhole/pattern.h"
#include "keyhole/plan.h"
#include "keyhole/select.h"
#include "keyhole/selection_cost.h"
#include "keyhole/tensor.h"
#include "keyhole/version.h"
#include "keyhole/workspace.h"
