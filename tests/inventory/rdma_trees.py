"""RDMA devices in trees as sysfs has them: a ConnectX-7 on InfiniBand, one on RoCE, a port that is down."""

COUNTERS = {
    "VL15_dropped": 0,
    "excessive_buffer_overrun_errors": 0,
    "link_downed": 2,
    "link_error_recovery": 0,
    "port_rcv_data": 18446744073709551615,
    "port_rcv_errors": 0,
    "port_xmit_discards": 0,
    "port_xmit_wait": 4294967295,
    "symbol_error": 17,
}
HW_COUNTERS = {
    "lifespan": 10,
    "local_ack_timeout_err": 0,
    "np_cnp_sent": 12,
    "out_of_sequence": 3,
    "packet_seq_err": 0,
    "rnr_nak_retry_err": 0,
    "rx_icrc_encapsulated": 0,
}
NDR_PORT = {
    "cap_mask": "0xa741e848",
    "lid": "0x2a",
    "lid_mask_count": 0,
    "link_layer": "InfiniBand",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "sm_lid": "0x1",
    "sm_sl": 0,
    "state": "4: ACTIVE",
    "gid_attrs": {"types": {"0": "IB/RoCE v1", "1": "IB/RoCE v1"}},
    "counters": COUNTERS,
    "hw_counters": HW_COUNTERS,
}
ROCE_PORT = {
    **NDR_PORT,
    "link_layer": "Ethernet",
    "lid": "0x0",
    "sm_lid": "0x0",
    "rate": "100 Gb/sec (4X EDR)",
    "gid_attrs": {"types": {"0": "IB/RoCE v1", "1": "RoCE v2", "2": "IB/RoCE v1", "3": "RoCE v2"}},
}
DOWN_PORT = {**NDR_PORT, "state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)", "lid": "0xffff", "sm_lid": "0x0"}
CONNECTX_7 = {
    "board_id": "MT_0000000838",
    "fw_ver": "28.39.2048",
    "hca_type": "MT4129",
    "hw_rev": 0,
    "node_guid": "a088:c203:0016:8f42",
    "node_type": "1: CA",
    "sys_image_guid": "a088:c203:0016:8f42",
}


def fill(folder, files):
    """Writes files, by their paths below a folder; a value that is a folder's worth of files is one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        if isinstance(content, dict):
            fill(path, content)
            continue
        if "/" in name:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n", encoding="utf-8")
    return folder


def add_device(root, name, path, *, ports, netdevs=None, numa=0, **files):
    """A device as sysfs has it: below its PCI device, and linked from its class and its bus."""
    sys = root / "sys"
    pci_device = sys / "devices" / path
    nets = {interface: {"mtu": mtu} for interface, mtu in (netdevs or {}).items()}
    fill(pci_device, {"numa_node": numa, "vendor": "0x15b3", **({"net": nets} if nets else {})})
    folder = fill(pci_device / "infiniband" / name, {**CONNECTX_7, "ports": ports, **files})
    (folder / "device").symlink_to("../..")
    for link, target in ((sys / "bus/pci/devices" / pci_device.name, pci_device), (sys / "class/infiniband" / name, folder)):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    return folder
