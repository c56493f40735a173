/* What the bindings are made from: libfabric's headers, its flag macros as typed constants, and the
 * few places where the structures of 1.x and 2.x differ. */

#include <stdint.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/* The API level we program against; every later library still offers it. */
static const uint32_t PLASMON_API_VERSION = FI_VERSION(1, 17);

static const uint64_t PLASMON_SOURCE = FI_SOURCE;
static const uint64_t PLASMON_SEND = FI_SEND;
static const uint64_t PLASMON_RECV = FI_RECV;
static const uint64_t PLASMON_READ = FI_READ;
static const uint64_t PLASMON_WRITE = FI_WRITE;
static const uint64_t PLASMON_TRANSMIT = FI_TRANSMIT;
static const uint64_t PLASMON_REMOTE_READ = FI_REMOTE_READ;
static const uint64_t PLASMON_REMOTE_WRITE = FI_REMOTE_WRITE;
static const uint64_t PLASMON_REMOTE_CQ_DATA = FI_REMOTE_CQ_DATA;
static const uint64_t PLASMON_COMPLETION = FI_COMPLETION;
static const uint64_t PLASMON_TRANSMIT_COMPLETE = FI_TRANSMIT_COMPLETE;
static const uint64_t PLASMON_ORDER_SAS = FI_ORDER_SAS;

static const uint64_t PLASMON_MODES = FI_CONTEXT | FI_CONTEXT2;
static const int PLASMON_MR_MODES =
	FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
static const int PLASMON_MR_LOCAL = FI_MR_LOCAL;
static const int PLASMON_MR_VIRT_ADDR = FI_MR_VIRT_ADDR;
static const int PLASMON_MR_PROV_KEY = FI_MR_PROV_KEY;

static const uint32_t PLASMON_SOCKADDR = FI_SOCKADDR;
static const uint32_t PLASMON_SOCKADDR_IN = FI_SOCKADDR_IN;
static const uint32_t PLASMON_SOCKADDR_IN6 = FI_SOCKADDR_IN6;

static const int PLASMON_GETWAIT = FI_GETWAIT;
static const int PLASMON_EAVAIL = FI_EAVAIL;
static const int PLASMON_ETOOSMALL = FI_ETOOSMALL;
static const int PLASMON_ETRUNC = FI_ETRUNC;
static const int PLASMON_ENOKEY = FI_ENOKEY;

/* Hints for a reliable-datagram endpoint with messages and one-sided operations, manual progress
 * and one thread a domain. No FI_ATOMIC: it drops ordering guarantees in ofi_rxm. A null provider
 * means any. Null when out of memory; to be freed with fi_freeinfo. */
static inline struct fi_info *plasmon_hints(const char *provider, uint64_t message_order)
{
	struct fi_info *hints = fi_allocinfo();
	if (!hints)
		return NULL;
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = PLASMON_MODES;
	hints->ep_attr->type = FI_EP_RDM;
	hints->tx_attr->msg_order = message_order;
	hints->rx_attr->msg_order = message_order;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->domain_attr->av_type = FI_AV_TABLE;
	hints->domain_attr->mr_mode = PLASMON_MR_MODES;
	if (provider) {
		hints->fabric_attr->prov_name = strdup(provider);
		if (!hints->fabric_attr->prov_name) {
			fi_freeinfo(hints);
			return NULL;
		}
	}
	return hints;
}
